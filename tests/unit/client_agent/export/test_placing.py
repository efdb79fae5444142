"""An export replaces the files of an earlier export only, and none of its files has a path of the silo."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from client_agent.adapters.peft_folder import CONFIG, TENSORS
from client_agent.errors import OutputUnwritable
from client_agent.export.folder import MANIFEST, place, require_free
from client_agent.export.job import largest_difference
from client_agent.model.loading import base_model_slug
from tests.scene.agent_commands import tessera
from tests.scene.agent_processes import MODELS
from tests.scene.silo_config import config

PLAN: dict[str, Any] = {
    "name": "alone",
    "strategy": {"name": "local"},
    "adapter": {"kind": "lora", "rank": 2, "scale": 4.0, "roles": ["q", "v", "down"]},
    "training": {"steps": 2, "max_length": 64, "learning_rate": 0.01},
    "rounds": {"total": 1, "min_clients": 2},
}


def export_of(folder: Path, *names: str) -> Path:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(name)
    return folder


def test_folder_with_files_is_not_replaced_silently(tmp_path: Path) -> None:
    out = tmp_path / "out"
    place(export_of(tmp_path / "a", "README.md", "x0/a"), out, "tiny")
    with pytest.raises(OutputUnwritable, match=r"not empty.*--force"):
        require_free(out, force=False)
    with pytest.raises(OutputUnwritable, match="--force"):
        place(export_of(tmp_path / "b", "README.md"), out, "tiny")
    assert (out / "x0" / "a").read_text() == "x0/a"


def test_force_deletes_files_of_the_export_only(tmp_path: Path) -> None:
    out = tmp_path / "out"
    place(export_of(tmp_path / "a", "README.md", "x0/a", "adapter.gguf"), out, "tiny")
    (out / "notes.txt").write_text("mine")
    placed = place(export_of(tmp_path / "b", "README.md", "y"), out, "tiny", force=True)
    assert placed.foreign == ("notes.txt",)
    assert {path.name for path in out.iterdir()} == {"README.md", "y", MANIFEST, "notes.txt"}
    assert placed.files == ("README.md", MANIFEST, "y")
    assert json.loads((out / MANIFEST).read_text())["base_model"] == "tiny"


def test_force_replaces_no_file_of_others(tmp_path: Path) -> None:
    out = tmp_path / "out"
    place(export_of(tmp_path / "a", "README.md"), out, "tiny")
    (out / "y").write_text("mine")
    with pytest.raises(OutputUnwritable, match="y is not of an export"):
        place(export_of(tmp_path / "b", "y"), out, "tiny", force=True)
    assert (out / "y").read_text() == "mine"


@pytest.mark.parametrize("content", [None, "[]", '{"files": ["../silo.toml"]}', '{"files": ["/etc/hosts"]}'])
def test_force_needs_a_list_of_files(tmp_path: Path, content: str | None) -> None:
    (tmp_path / "silo.toml").write_text("")
    out = export_of(tmp_path / "out", "notes.txt")
    if content is not None:
        (out / MANIFEST).write_text(content)
    with pytest.raises(OutputUnwritable, match="pass a new folder"):
        place(export_of(tmp_path / "a", "README.md"), out, "tiny", force=True)
    assert (tmp_path / "silo.toml").exists()


def trained_alone(folder: Path, rate: float = 0.01, **changes: str) -> tuple[object, ...]:
    """Train an adapter, and return the command that exports it."""
    plan, file, settings = folder / "plan.json", folder / "adapter.safetensors", config(folder, **changes)
    plan.write_text(json.dumps(PLAN | {"training": PLAN["training"] | {"learning_rate": rate}}))
    done = tessera("train", "--config", settings, "--plan", plan, "--out", file)
    assert done.exit_code == 0, done.output
    return "export", "--config", settings, "--adapter", file, "--plan", plan


@pytest.mark.slow
def test_exported_files_have_no_path_of_the_silo(tmp_path: Path) -> None:
    export, slug = trained_alone(tmp_path), base_model_slug(str(MODELS["S"]))
    folders = (tmp_path, MODELS["S"], MODELS["S"].parent, Path.home())
    for target in ("peft", "vllm", "gguf", "merged"):
        out = tmp_path / f"out-{target}"
        done = tessera(*export, "--for", target, "--out", out)
        assert done.exit_code == 0, done.output
        for file in out.rglob("*"):
            content = file.read_bytes() if file.is_file() else b""
            assert not [path for path in folders if f"{path}/".encode() in content], file
            assert str(MODELS["S"]).encode() not in content, file
        assert json.loads((out / MANIFEST).read_text())["base_model"] == slug
        if target in ("peft", "vllm"):
            assert json.loads((out / CONFIG).read_text())["base_model_name_or_path"] == slug
            assert (out / TENSORS).is_file()


@pytest.mark.slow
def test_merged_bfloat16_model_keeps_its_loss(tmp_path: Path) -> None:
    """Two steps are smaller than the rounding of bfloat16 weights."""
    model = tmp_path / "model"
    model.mkdir()
    for file in MODELS["S"].iterdir():
        (model / file.name).write_bytes(file.read_bytes())
    weights = {name: value.bfloat16() for name, value in load_file(model / "model.safetensors").items()}
    save_file(weights, model / "model.safetensors", {"format": "pt"})
    settings = json.loads((model / "config.json").read_text())
    settings.pop("torch_dtype", None)
    (model / "config.json").write_text(json.dumps(settings | {"dtype": "bfloat16"}))
    export = (*trained_alone(tmp_path, 1e-4, model=str(model)), "--for", "merged", "--out")
    done = tessera(*export, tmp_path / "a")
    assert done.exit_code == 0, done.output
    assert "\nweights in float32, as bfloat16 has loss" in done.output
    for dtype, size in (("bfloat16", 2), ("float32", 4)):
        out = tmp_path / dtype
        done = tessera(*export, out, "--dtype", dtype)
        assert done.exit_code == 0, done.output
        assert f"weights in {dtype}" in done.output
        tensors = load_file(out / "model.safetensors")
        assert {value.element_size() for value in tensors.values()} == {size}
    done = tessera(*export[:-3], "--out", tmp_path / "b", "--dtype", "float32")
    assert "--dtype belongs to --for merged" in done.output


def test_limit_follows_the_rounding_of_the_base_model() -> None:
    assert largest_difference(2.19, torch.float32) == pytest.approx(0.001)
    assert largest_difference(2.19, torch.float32, torch.bfloat16) == pytest.approx(2.19 / 256)
    assert largest_difference(0.1, torch.bfloat16) == pytest.approx(0.001)
    assert largest_difference(4.0, torch.float16) == pytest.approx(4 / 2048)
