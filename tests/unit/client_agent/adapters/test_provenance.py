"""Adapters trained alone load only under their plan, frames and base model; others are refused early."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors.numpy
import safetensors.torch

from client_agent.adapters.peft_folder import CONFIG, TENSORS
from client_agent.alignment.fit_packs import random_pack
from client_agent.settings import read_settings
from client_agent.storage.tensor_metadata import metadata_of, save_tensors
from client_agent.training.silo import open_silo
from schemas.messages.federations import AdapterPlan, AlignmentPlan
from tests.scene.agent_commands import tessera
from tests.scene.agent_processes import MODELS
from tests.scene.silo_config import config

ADAPTER: dict[str, Any] = {"kind": "pq", "rank": 4, "roles": ["v", "down"], "private_rank": 2}
PLAN: dict[str, Any] = {
    "name": "alone",
    "strategy": {"name": "fedavg"},
    "rounds": {"total": 1},
    "adapter": ADAPTER,
    "training": {"steps": 2, "max_length": 64, "learning_rate": 0.01},
}
LORA = {"adapter": {"kind": "lora", "rank": 2, "roles": ["v"]}}
NOWHERE = "./no-model-is-here"  # an error about it would say that something was checked too late
Write = Callable[..., Path]


@pytest.fixture
def plan(tmp_path: Path) -> Write:
    """Write a plan: `plan()`, or `plan(adapter=ADAPTER | {"scale": 1.0})`."""

    def write(**changes: Any) -> Path:
        file = tmp_path / f"plan-{len(list(tmp_path.glob('plan-*')))}.json"
        file.write_text(json.dumps(PLAN | changes))
        return file

    return write


@pytest.fixture
def trained(tmp_path: Path, plan: Write) -> Callable[..., Path]:
    """Train alone: `trained()`, or `trained("--pack", file, adapter=...)`, on the model S."""

    def make(*options: object, **changes: Any) -> Path:
        out = tmp_path / "adapter.safetensors"
        done = tessera(
            "train", "--config", config(tmp_path), "--plan", plan(**changes), "--out", out, *options
        )
        assert done.exit_code == 0, done.output
        return out

    return make


def exported(tmp_path: Path, file: Path, plan: Path, *options: object, **changes: str) -> str:
    """Export a file; return what was said, or nothing if it went well."""
    out = tmp_path / "out"
    arguments = ("--adapter", file, "--plan", plan, "--out", out, *options)
    done = tessera("export", "--config", config(tmp_path, **changes), *arguments)
    assert out.exists() == (done.exit_code == 0)
    return done.stderr.replace("\n", " ") if done.exit_code else ""


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"adapter": ADAPTER | {"scale": 1.0}}, "scale 2.0, not 1.0"),
        ({"adapter": ADAPTER | {"rank": 6}}, "rank 4, not 6"),
        ({"adapter": ADAPTER | {"roles": ["v"]}}, "roles down, v, not v"),
        ({"adapter": ADAPTER | {"private_rank": 0}}, "private_rank 2, not 0"),
        ({"adapter": ADAPTER | {"blocks": 2}}, "blocks 4, not 2"),
        (LORA, "kind pq, not lora"),
    ],
)
def test_adapter_of_another_plan_is_refused_before_loading(
    tmp_path: Path, trained: Callable[..., Path], plan: Write, changes: dict[str, Any], expected: str
) -> None:
    output = exported(tmp_path, trained(), plan(**changes), model=NOWHERE)
    assert expected in output
    assert "the plan that it was trained with" in output


def test_frames_of_another_seed_are_refused(
    tmp_path: Path, trained: Callable[..., Path], plan: Write
) -> None:
    file = trained()
    output = exported(tmp_path, file, plan(training=PLAN["training"] | {"seed": 7}))
    assert "with different frames (seed 0, not 7" in output
    roles_the_other_way = plan(
        adapter=ADAPTER | {"roles": ["down", "v"]}, training={"steps": 9, "learning_rate": 0.01}
    )
    assert exported(tmp_path, file, roles_the_other_way) == ""


def test_other_or_missing_alignment_pack_is_refused(
    tmp_path: Path, trained: Callable[..., Path], plan: Write
) -> None:
    base = open_silo(read_settings(config(tmp_path))).base
    adapter = AdapterPlan.model_validate(ADAPTER)
    packs = []
    for seed in (1, 2):
        pack = random_pack(base, adapter, AlignmentPlan(pivot=base.slug, seed=seed), "test")
        packs.append(tmp_path / f"pack-{seed}")
        packs[-1].write_bytes(pack.to_body())
    alone = trained()
    assert "with different frames" in exported(tmp_path, alone, plan(), "--pack", packs[0])
    packed = trained("--pack", packs[0])
    assert "with different frames" in exported(tmp_path, packed, plan())
    assert "with different frames" in exported(tmp_path, packed, plan(), "--pack", packs[1])
    assert exported(tmp_path, packed, plan(), "--pack", packs[0]) == ""


def test_other_base_model_of_same_shapes_is_refused(
    tmp_path: Path, trained: Callable[..., Path], plan: Write
) -> None:
    copied = tmp_path / "other"
    shutil.copytree(MODELS["S"], copied)
    tensors = safetensors.torch.load_file(copied / "model.safetensors")
    name = next(name for name in tensors if name.endswith("v_proj.weight"))
    tensors[name] = tensors[name] + 1
    safetensors.torch.save_file(tensors, copied / "model.safetensors", metadata={"format": "pt"})
    assert "was trained on llama-96x4-" in exported(tmp_path, trained(), plan(), model=str(copied))


def test_file_without_origin_is_refused(tmp_path: Path, trained: Callable[..., Path], plan: Write) -> None:
    file = trained()
    content = file.read_bytes()
    metadata = {name: value for name, value in metadata_of(content).items() if name != "origin"}
    file.write_bytes(save_tensors(safetensors.numpy.load(content), metadata))
    assert "is not a trained adapter" in exported(tmp_path, file, plan(), model=NOWHERE)


@pytest.mark.parametrize(
    ("changes", "precision"),
    [({}, "float32"), ({"dtype": "bfloat16"}, "bfloat16"), ({"quantization": "nf4"}, "nf4, bfloat16")],
)
def test_export_reports_precision_of_training(
    tmp_path: Path, plan: Write, changes: dict[str, str], precision: str
) -> None:
    file, written = tmp_path / "adapter.safetensors", plan()
    train = ("train", "--config", config(tmp_path, **changes), "--plan", written, "--out", file)
    assert tessera(*train).exit_code == 0
    # Not the precision of the model that happens to be loaded for the export.
    export = ("export", "--config", config(tmp_path), "--adapter", file, "--plan", written)
    printed = tessera(*export, "--out", tmp_path / "out").stdout
    assert f"trained on weights in {precision}" in printed or f"trained on {precision} weights" in printed
    assert ("to 1e-5" in printed) == (precision == "float32")
    assert ("score it again" in printed) == (precision != "float32")


def test_contradictory_options_are_refused(tmp_path: Path, plan: Write) -> None:
    silo = config(tmp_path, model=NOWHERE)
    file, folder, written = tmp_path / "file", tmp_path / "folder", plan()
    file.write_bytes(b"")
    folder.mkdir()
    for name in (CONFIG, TENSORS):
        (folder / name).write_bytes(b"")
    export, generate = ("export", "--out", tmp_path / "out"), ("generate", "--prompt", "x")
    for command, options, expected in (
        (generate, ("--base", "--adapter", file), "--base uses no adapter"),
        (generate, ("--base", "--round", "1"), "--base uses no adapter"),
        (generate, ("--base", "--plan", written), "--base uses no adapter"),
        (generate, ("--plan", written), "belong to --adapter"),
        (export, ("--pack", file), "belong to --adapter"),
        (export, ("--round", "latest", "--adapter", file, "--plan", written), "two different adapters"),
        (generate, ("--round", "1", "--adapter", folder), "two different adapters"),
        (generate, ("--adapter", folder, "--plan", written), "is a folder"),
        (generate, ("--adapter", folder, "--pack", file), "is a folder"),
        (export, ("--adapter", folder, "--plan", written), "is a folder"),
        (export, ("--adapter", file, "--plan", tmp_path / "none.json"), "none.json cannot be read"),
        (("train",), ("--plan", plan(**LORA), "--pack", file), "has no frames"),
        (export, ("--adapter", file, "--plan", plan(**LORA), "--pack", file), "has no frames"),
    ):
        done = tessera(command[0], "--config", silo, *command[1:], *options)
        assert done.exit_code == 1, done.output
        assert expected in done.stderr.replace("\n", " "), (command, options, done.stderr)


def test_missing_adapter_is_not_sought_on_the_hub(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, plan: Write
) -> None:
    """A relative folder reads like a hub id; without its files public peft would ask the hub for them."""
    monkeypatch.chdir(tmp_path)
    silo = config(tmp_path, model=NOWHERE)
    Path("somebody/adapter").mkdir(parents=True)
    generate = ("generate", "--config", silo, "--prompt", "x", "--adapter")
    for name, expected in (
        ("nobody/adapter", "nobody/adapter does not exist"),
        ("somebody/adapter", f"somebody/adapter holds no PEFT checkpoint: {CONFIG} is missing"),
    ):
        done = tessera(*generate, name)
        assert done.exit_code == 1
        assert expected in done.stderr.replace("\n", " ")
    done = tessera(*generate, "nobody/adapter", "--plan", plan())
    assert "nobody/adapter does not exist" in done.stderr.replace("\n", " ")
