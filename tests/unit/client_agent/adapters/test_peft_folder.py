"""Folders of PEFT adapters: loaded whole, or refused by the name of the unfit part."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import safetensors.torch
import torch
from torch import Tensor

from client_agent.adapters.peft_export import checkpoint_in_place, write_checkpoint
from client_agent.adapters.peft_folder import (
    BASE_MODEL,
    CONFIG,
    PREFIX,
    TENSORS,
    read_adapter_folder,
)
from client_agent.errors import AdapterUnreadable, ProvenanceMismatch
from client_agent.model.loading import BaseModel, load_base_model
from tests.unit.client_agent.adapters.peft_adapters import random_adapter

Tensors = dict[str, Tensor]
FIRST = f"{PREFIX}.model.layers.0.self_attn.q_proj.lora_A.weight"


@pytest.fixture(scope="module")
def source(saved_model: Callable[..., str]) -> str:
    return saved_model("llama")


@pytest.fixture(scope="module")
def base(source: str) -> BaseModel:
    return load_base_model(source, device=torch.device("cpu"))


@pytest.fixture(scope="module")
def export(base: BaseModel, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("export")
    with random_adapter(base, "lora") as adapter:
        write_checkpoint(folder, adapter.as_lora(), base, "tiny")
    return folder


@pytest.fixture
def copy(export: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(export, tmp_path / "copy"))


def change_tensors(folder: Path, change: Callable[[Tensors], Tensors], *, base_model: str | None) -> None:
    tensors = change(safetensors.torch.load_file(folder / TENSORS))
    metadata = {"format": "pt"} | ({BASE_MODEL: base_model} if base_model is not None else {})
    safetensors.torch.save_file(tensors, folder / TENSORS, metadata=metadata)


def change_config(folder: Path, **entries: object) -> None:
    config = json.loads((folder / CONFIG).read_text())
    (folder / CONFIG).write_text(json.dumps(config | entries))


def refusal(base: BaseModel, folder: Path) -> str:
    with pytest.raises(AdapterUnreadable) as caught, checkpoint_in_place(base, folder):
        pass
    assert not hasattr(base.model, "peft_config")
    return str(caught.value)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (
            lambda t: {n.removeprefix(f"{PREFIX}."): v for n, v in t.items()},
            "missing base_model.model.model.layers.0",
        ),
        (lambda t: dict(sorted(t.items())[1:]), "missing base_model.model.model.layers.0"),
        (lambda t: t | {"base_model.model.lm_head.weight": torch.ones(2, 2)}, "lm_head.weight"),
        (lambda t: t | {FIRST.replace(".q_", ".z_"): t[FIRST].clone()}, "z_proj"),
        (lambda t: t | {FIRST: t[FIRST][:2].clone()}, "q_proj.lora_A"),
        (lambda t: t | {FIRST: t[FIRST] / 0}, f"{FIRST} has values that are not finite"),
        (lambda t: t | {FIRST: t[FIRST].int()}, f"{FIRST} has values"),
    ],
    ids=["renamed", "half", "head", "foreign", "rank", "infinite", "integers"],
)
def test_unfit_tensor_is_refused_by_name(
    base: BaseModel, copy: Path, change: Callable[[Tensors], Tensors], named: str
) -> None:
    change_tensors(copy, change, base_model=base.slug)
    assert named in refusal(base, copy)


@pytest.mark.parametrize(
    "entry",
    [
        {"use_dora": True},
        {"bias": "all"},
        {"lora_bias": True},
        {"modules_to_save": ["lm_head"]},
        {"init_lora_weights": "pissa"},
        {"layer_replication": [[0, 2], [1, 3]]},
        {"alora_invocation_tokens": [1, 2]},
        {"trainable_token_indices": [1]},
        {"use_option_of_another_version": True},
        {"alpha_pattern": {"q_prj": 8}},
        {"rank_pattern": {"q_prj": 8}},
        {"fan_in_fan_out": True},
        {"lora_alpha": float("nan")},
        {"task_type": "SEQ_CLS"},
        {"peft_type": "LOHA"},
    ],
    ids=str,
)
def test_unsupported_key_is_refused_by_name(base: BaseModel, copy: Path, entry: dict[str, object]) -> None:
    change_config(copy, **entry)
    (key,) = entry
    assert key in refusal(base, copy)


def test_patterns_that_peft_applies_are_loaded(base: BaseModel, copy: Path) -> None:
    change_config(
        copy,
        use_rslora=True,
        alpha_pattern={"q_proj": 8},
        rank_pattern={"layers.0.self_attn.q_proj": 3},
        an_option_of_another_version=None,
    )
    with checkpoint_in_place(base, copy):
        assert hasattr(base.model, "peft_config")


def test_adapter_of_other_weights_is_refused(base: BaseModel, copy: Path) -> None:
    change_tensors(copy, dict, base_model="llama-32x4-000000000000")
    placing = checkpoint_in_place(base, copy)
    with pytest.raises(ProvenanceMismatch, match=f"llama-32x4-000000000000, and .* {base.slug}"), placing:
        pass
    change_tensors(copy, dict, base_model=None)
    assert "does not name the base model" in refusal(base, copy)


def test_export_names_its_base_model(base: BaseModel, export: Path) -> None:
    assert read_adapter_folder(export).base_model == base.slug
