"""Write what an adapter adds as a standard PEFT LoRA checkpoint, for public peft to load; and load one.

Exact (fedmosaic.md section 2): lora_A = A, lora_B = s B P, and the output bias s B Q as peft's `lora_bias`.
peft multiplies all of it, the bias too, by lora_alpha / r: so lora_alpha is r, path by path.
"""

from __future__ import annotations

import json
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import numpy as np
import safetensors.numpy
from safetensors import SafetensorError
from torch import nn
from transformers.pytorch_utils import Conv1D

from client_agent.adapters.base import LoraFactors, replace_module, require_bare
from client_agent.errors import AdapterUnreadable
from client_agent.model.loading import BaseModel
from client_agent.storage.files import write_durably

CONFIG = "adapter_config.json"
TENSORS = "adapter_model.safetensors"
_PREFIX = "base_model.model"


def write_checkpoint(
    folder: Path, factors: Mapping[str, LoraFactors], model: nn.Module, model_name: str
) -> None:
    """Write `adapter_config.json` and `adapter_model.safetensors` of the factors of an adapter in place.

    `model` is the bare base model, or the one that carries the adapter; `model_name` the folder or hub id
    that others load it from. The result cannot be merged into layers without bias when Q is in use.
    """
    write_durably(folder / TENSORS, safetensors.numpy.save(_tensors(factors), metadata={"format": "pt"}))
    config = _config(factors, model, model_name)
    write_durably(folder / CONFIG, f"{json.dumps(config, indent=2, sort_keys=True)}\n".encode())


def how_exact(precision: str | None) -> str:
    """Say on which base model a checkpoint does what was scored; `precision` None = it is not known."""
    if precision is None:
        return (
            "score it on the base model as you will load it: in which precision it was trained is not known"
        )
    if precision == "float32":
        return (
            "trained on float32 weights: public peft gives the same logits on these to 1e-5; on weights in "
            "fewer bits they differ, as the base model's own do"
        )
    return (
        f"trained on weights in {precision}: public peft gives the same but for that precision's rounding if "
        "it loads the base model in the same way; on weights in another precision, float32 included, it is "
        "another model than was scored: score it there before you use it"
    )


def require_checkpoint(folder: Path) -> None:
    """Make sure that a folder holds what `write_checkpoint` writes, so that nothing is sought elsewhere.

    Raises:
        AdapterUnreadable: it does not.
    """
    missing = [name for name in (CONFIG, TENSORS) if not (folder / name).is_file()]
    if missing:
        raise AdapterUnreadable(
            f"{folder} holds no PEFT checkpoint: {missing[0]} is missing; give a folder that "
            "`tessera agent export` wrote"
        )


@contextmanager
def checkpoint_in_place(base: BaseModel, folder: Path) -> Iterator[None]:
    """Let public peft put a checkpoint around the base model; leaving the context takes it away.

    Raises:
        AdapterInPlace: the base model carries an adapter already.
        AdapterUnreadable: the folder holds no checkpoint, or one of another base model.
    """
    from peft import PeftModel  # seconds to import

    require_bare(base)
    require_checkpoint(folder)
    with _put_back(cast(nn.Module, base.model)):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # about merging, and about how peft calls other libraries
                cast(Any, PeftModel).from_pretrained(base.model, folder.resolve())
        except (OSError, ValueError, RuntimeError, KeyError, TypeError, SafetensorError) as error:
            raise AdapterUnreadable(
                f"{folder} holds no PEFT checkpoint for {base.slug} ({error!r}); give a folder that "
                "`tessera agent export` wrote for this base model"
            ) from error
        yield


@contextmanager
def _put_back(model: nn.Module) -> Iterator[None]:
    """Undo what peft does to a model, also when it fails half-way."""
    modules = dict(model.named_modules())
    try:
        yield
    finally:
        for path, module in modules.items():
            if path and model.get_submodule(path) is not module:
                replace_module(model, path, module)
        if hasattr(model, "peft_config"):
            del model.peft_config


def _config(factors: Mapping[str, LoraFactors], model: nn.Module, model_name: str) -> dict[str, object]:
    """Say what peft must know; ranks that are not the most frequent one have an entry of their own."""
    from peft import LoraConfig  # seconds to import

    ranks = {path: len(one.A) for path, one in sorted(factors.items())}
    rank = Counter(ranks.values()).most_common(1)[0][0]
    others = {path: r for path, r in ranks.items() if r != rank}
    config = LoraConfig(
        task_type="CAUSAL_LM",
        base_model_name_or_path=model_name,
        inference_mode=True,
        r=rank,
        lora_alpha=rank,
        rank_pattern=others,
        alpha_pattern=dict(others),
        lora_bias=_has_bias(factors),
        fan_in_fan_out=any(_is_transposed(model, path) for path in factors),
    )
    return {**cast(Any, config).to_dict(), "target_modules": list(ranks)}


def _tensors(factors: Mapping[str, LoraFactors]) -> dict[str, np.ndarray]:
    """Name A (r, d_in), B (d_out, r) and, where any path has one, the bias (d_out,) as peft does."""
    with_bias = _has_bias(factors)
    tensors: dict[str, np.ndarray] = {}
    for path, one in factors.items():
        tensors[f"{_PREFIX}.{path}.lora_A.weight"] = np.ascontiguousarray(one.A)
        tensors[f"{_PREFIX}.{path}.lora_B.weight"] = np.ascontiguousarray(one.B)
        if with_bias:
            bias = one.bias if one.bias is not None else np.zeros(len(one.B), np.float32)
            tensors[f"{_PREFIX}.{path}.lora_B.bias"] = np.ascontiguousarray(bias)
    return tensors


def _has_bias(factors: Mapping[str, LoraFactors]) -> bool:
    return any(one.bias is not None and one.bias.any() for one in factors.values())


def _is_transposed(model: nn.Module, path: str) -> bool:
    """Say whether a layer keeps its weight as (d_in, d_out), below whatever is wrapped around it."""
    module: object = model.get_submodule(path)
    while hasattr(module, "base_layer"):
        module = module.base_layer
    return isinstance(module, Conv1D)
