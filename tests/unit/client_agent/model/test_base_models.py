"""Loading base models, and naming their exact weights."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from client_agent.errors import ModelNotFound, TokenizerUnfit, UnknownArchitecture
from client_agent.model.loading import BaseModel, base_model_slug, load_base_model

CPU = torch.device("cpu")


def test_loaded_model_is_frozen_and_described(each_architecture: BaseModel) -> None:
    base = each_architecture
    assert not any(parameter.requires_grad for parameter in base.model.parameters())
    assert not base.model.training
    assert (base.hidden_size, base.layers) == (32, 4)
    shared_heads = base.architecture not in ("gpt_neox", "gpt2")
    assert base.shapes["k"] == ((16, 32) if shared_heads else (32, 32))
    assert base.shapes["down"] == (32, 48)
    assert base.slug.rpartition("-")[0] == f"{base.architecture.replace('_', '-')}-32x4"


def test_slug_follows_kind_and_weights_not_folder(saved_model: Callable[..., str]) -> None:
    folder = saved_model(name="My Model!")
    name, _, digits = base_model_slug(folder).rpartition("-")
    assert name == "llama-32x4"
    assert len(digits) == 12
    assert base_model_slug(saved_model(name="a copy of it")) == base_model_slug(folder)
    assert base_model_slug(folder + "/") == base_model_slug(folder)
    assert load_base_model(folder, device=CPU).slug == base_model_slug(folder)


def test_other_weights_or_function_change_the_slug(saved_model: Callable[..., str]) -> None:
    slugs = {
        base_model_slug(saved_model(**changes))
        for changes in ({}, {"seed": 1}, {"rms_norm_eps": 1e-4}, {"model_type": "mistral"})
    }
    assert len(slugs) == 4


def test_shards_and_metadata_do_not_change_the_slug(saved_model: Callable[..., str], tmp_path: Path) -> None:
    folder = Path(saved_model())
    sharded = tmp_path / "tiny"
    AutoModelForCausalLM.from_pretrained(folder).save_pretrained(sharded, max_shard_size="40KB")
    assert len(list(sharded.glob("*.safetensors"))) > 1
    config = json.loads((sharded / "config.json").read_text())
    (sharded / "config.json").write_text(
        json.dumps({**config, "transformers_version": "9.9", "torch_dtype": "bfloat16", "_name_or_path": "x"})
    )
    assert base_model_slug(str(sharded)) == base_model_slug(str(folder))


@pytest.mark.parametrize(
    ("model_type", "reason"),
    [
        ("nobody_knows_it", r"'nobody_knows_it' is unknown to transformers.*docs/reference/architectures.md"),
        ("bart", r"bart.*docs/reference/architectures.md"),
    ],
)
def test_unfit_architecture_is_refused_with_the_reason(
    saved_model: Callable[..., str], model_type: str, reason: str
) -> None:
    folder = Path(saved_model())
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "model_type": model_type}))
    with pytest.raises(UnknownArchitecture, match=reason):
        load_base_model(str(folder), device=CPU)


def test_missing_or_damaged_model_is_refused_with_reason(
    saved_model: Callable[..., str], tmp_path: Path
) -> None:
    with pytest.raises(ModelNotFound, match="no such folder"):
        load_base_model("/nowhere/at/all", device=CPU)
    with pytest.raises(ModelNotFound, match=r"config\.json"):
        load_base_model(str(tmp_path), device=CPU)
    with pytest.raises(ModelNotFound, match="neither a folder nor"):
        load_base_model("nobody/nothing", device=CPU)
    folder = Path(saved_model())
    weights = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(weights[:-10])
    with pytest.raises(ModelNotFound, match="download it again"):
        base_model_slug(str(folder))
    (folder / "model.safetensors").write_bytes(b"\xff" * 100)
    with pytest.raises(ModelNotFound, match="damaged"):
        base_model_slug(str(folder))
    (folder / "model.safetensors").unlink()
    with pytest.raises(ModelNotFound, match="safetensors"):
        base_model_slug(str(folder))


def test_tokenizer_without_eos_is_refused(saved_model: Callable[..., str]) -> None:
    folder = Path(saved_model())
    config = json.loads((folder / "tokenizer_config.json").read_text())
    config.pop("eos_token")
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    with pytest.raises(TokenizerUnfit, match="eos"):
        load_base_model(str(folder), device=CPU)
