"""Public peft, in a process without Tessera, gives the logits of the trained adapter."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy
import torch

from client_agent.adapters.peft_export import checkpoint_in_place, write_checkpoint
from client_agent.adapters.peft_folder import CONFIG, TENSORS
from client_agent.errors import AdapterInPlace, AdapterUnreadable, LayoutMismatch, ProvenanceMismatch
from client_agent.model.loading import BaseModel, load_base_model
from tests.scene.models import logits_array
from tests.scene.tiny_models import ARCHITECTURES
from tests.unit.client_agent.adapters.peft_adapters import (
    EVERYTHING,
    IDS,
    PLANS,
    factors_of,
    random_adapter,
    without_shifts,
)

CASES = [(architecture, EVERYTHING) for architecture in ARCHITECTURES]
CASES += [("llama", name) for name in PLANS if name != EVERYTHING]
CASES += [
    (architecture, name) for architecture in ("phi3", "gpt2") for name in ("gated", "lora", "folded lora")
]
PEFT_ALONE = """
import json, sys
import numpy as np, torch
from peft import PeftModel
from transformers import AutoModelForCausalLM

torch.set_num_threads(1)
for case in json.load(open(sys.argv[1])):
    base = AutoModelForCausalLM.from_pretrained(case["model"], dtype=torch.float32)
    model = PeftModel.from_pretrained(base, case["checkpoint"])
    with torch.no_grad():
        logits = model(input_ids=torch.tensor(case["ids"])).logits
    np.save(case["logits"], logits.numpy())
assert not {"client_agent", "schemas", "coordinator"} & {name.partition(".")[0] for name in sys.modules}
"""


@dataclass(frozen=True)
class Exported:
    """One adapter as it acted when it was exported, and what the bare model says; (1, t, V) float32."""

    checkpoint: Path
    logits: np.ndarray
    bare: np.ndarray
    by_peft: Path


@pytest.fixture(scope="module")
def exported(
    saved_model: Callable[..., str], tmp_path_factory: pytest.TempPathFactory
) -> dict[tuple[str, str], Exported]:
    """Export every case here, and load all of them in one process of public peft."""
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("exported")
    exports: dict[tuple[str, str], Exported] = {}
    cases = []
    for i, (architecture, name) in enumerate(CASES):
        source = saved_model(architecture, num_hidden_layers=11 if name == "deep" else 4)
        base = load_base_model(source, device=torch.device("cpu"))
        bare = logits_array(base, IDS)
        with random_adapter(base, name) as adapter:
            without_shifts(adapter)
            export = Exported(folder / f"{i}", logits_array(base, IDS), bare, folder / f"{i}.npy")
            write_checkpoint(export.checkpoint, factors_of(adapter), base, source)
        exports[architecture, name] = export
        cases.append(
            {"model": source, "checkpoint": str(export.checkpoint), "ids": IDS, "logits": str(export.by_peft)}
        )
    (folder / "cases.json").write_text(json.dumps(cases))
    done = subprocess.run(
        [sys.executable, "-c", PEFT_ALONE, str(folder / "cases.json")],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return exports


@pytest.mark.parametrize(("architecture", "name"), CASES)
def test_public_peft_gives_the_same_logits(
    exported: dict[tuple[str, str], Exported], architecture: str, name: str
) -> None:
    export = exported[architecture, name]
    assert np.abs(export.logits - export.bare).max() > 0.05
    np.testing.assert_allclose(np.load(export.by_peft), export.logits, rtol=1e-5, atol=1e-5)


def test_export_configuration_has_what_peft_requires(exported: dict[tuple[str, str], Exported]) -> None:
    def config(architecture: str, name: str) -> dict[str, object]:
        content = (exported[architecture, name].checkpoint / CONFIG).read_bytes()
        return dict(json.loads(content))

    both = config("llama", EVERYTHING)
    assert (both["peft_type"], both["task_type"]) == ("LORA", "CAUSAL_LM")
    assert both["lora_bias"] is False
    assert both["fan_in_fan_out"] is False
    assert both["r"] == both["lora_alpha"] == 11
    assert both["rank_pattern"] == both["alpha_pattern"] == {}
    assert "q_proj" in both["target_modules"]  # type: ignore[operator]
    assert Path(str(both["base_model_name_or_path"]), "config.json").is_file()
    assert config("llama", "lora")["lora_bias"] is False
    assert config("gpt2", EVERYTHING)["fan_in_fan_out"] is True


def test_exported_modules_have_one_rank(exported: dict[tuple[str, str], Exported]) -> None:
    tensors = safetensors.numpy.load_file(exported["llama", "deep"].checkpoint / TENSORS)
    ranks = {n: v.shape[0] for n, v in tensors.items() if n.endswith("q_proj.lora_A.weight")}
    assert {int(name.split(".")[4]): rank for name, rank in ranks.items()} == dict.fromkeys(range(11), 8)
    ends = tensors["base_model.model.model.layers.3.self_attn.q_proj.lora_A.weight"]
    assert ends[:2].any()
    assert not ends[2:].any()


def test_bias_is_refused_in_a_checkpoint(tiny: Callable[..., BaseModel], tmp_path: Path) -> None:
    base = tiny()
    with random_adapter(base, "p and q") as adapter, pytest.raises(LayoutMismatch, match="bias"):
        write_checkpoint(tmp_path, adapter.as_lora(), base, "somewhere")
    assert not list(tmp_path.iterdir())


def test_checkpoint_loads_and_unloads_without_trace(tiny: Callable[..., BaseModel], tmp_path: Path) -> None:
    base = tiny()
    bare, modules, attributes = (
        logits_array(base, IDS),
        dict(base.model.named_modules()),
        set(vars(base.model)),
    )
    with random_adapter(base, EVERYTHING) as adapter:
        without_shifts(adapter)
        acting = logits_array(base, IDS)
        write_checkpoint(tmp_path, factors_of(adapter), base, "somewhere")
        with pytest.raises(AdapterInPlace), checkpoint_in_place(base, tmp_path):
            pass
    with checkpoint_in_place(base, tmp_path):
        np.testing.assert_allclose(logits_array(base, IDS), acting, rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(logits_array(base, IDS), bare)
    assert dict(base.model.named_modules()) == modules
    assert set(vars(base.model)) == attributes


def test_invalid_or_foreign_checkpoint_is_refused(tiny: Callable[..., BaseModel], tmp_path: Path) -> None:
    base, wider = tiny(), tiny(hidden_size=64)
    with random_adapter(wider, "lora") as adapter:
        write_checkpoint(tmp_path / "wider", factors_of(adapter), wider, "somewhere")
    (tmp_path / "empty").mkdir()
    before = dict(base.model.named_modules())
    for name, file, content in (
        ("no type", CONFIG, b"{}"),
        ("no object", CONFIG, b"[]"),
        ("unknown type", CONFIG, b'{"peft_type": "X"}'),
        ("cut off", TENSORS, (tmp_path / "wider" / TENSORS).read_bytes()[:100]),
    ):
        shutil.copytree(tmp_path / "wider", tmp_path / name)
        (tmp_path / name / file).write_bytes(content)
    for folder in ("wider", "empty", "no type", "no object", "unknown type", "cut off"):
        placing = checkpoint_in_place(base, tmp_path / folder)
        error = ProvenanceMismatch if folder == "wider" else AdapterUnreadable
        with pytest.raises(error, match=r"tessera agent export|set model to"), placing:
            pass
        assert dict(base.model.named_modules()) == before
