"""Write and load an adapter as a standard PEFT LoRA checkpoint, which public peft can load.

Exact (fedmosaic.md section 2): lora_A = A, lora_B = s B P, and the output bias s B Q as peft's `lora_bias`.
peft multiplies A, B and the bias by lora_alpha / r, so lora_alpha = r for every path.
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
    """Write `adapter_config.json` and `adapter_model.safetensors` of an adapter's factors.

    `model` is the base model, with or without the adapter; `model_name` is the folder or hub id from which
    peft loads it. With Q in use the checkpoint cannot be merged into layers without bias.
    """
    write_durably(folder / TENSORS, safetensors.numpy.save(_tensors(factors), metadata={"format": "pt"}))
    config = _config(factors, model, model_name)
    write_durably(folder / CONFIG, f"{json.dumps(config, indent=2, sort_keys=True)}\n".encode())


def precision_note(precision: str | None) -> str:
    """Return a sentence on the base-model precision under which the exported adapter keeps its score.

    `precision` None means unknown.
    """
    if precision is None:
        return (
            "the precision of the base model in training is not known: score the adapter on the base model "
            "as you will load it"
        )
    if precision == "float32":
        return (
            "trained on float32 weights: public peft returns the same logits on float32 weights to 1e-5; on "
            "weights in fewer bits they differ, as the base model's logits do"
        )
    return (
        f"trained on weights in {precision}: public peft returns the same logits, up to rounding in that "
        "precision, if it loads the base model in the same way; in another precision, float32 included, the "
        "model differs from the scored model: score it again before you use it"
    )


def require_checkpoint(folder: Path) -> None:
    """Check that a folder holds both checkpoint files, so that peft looks for neither of them on the hub.

    Raises:
        AdapterUnreadable: a file is missing.
    """
    missing = [name for name in (CONFIG, TENSORS) if not (folder / name).is_file()]
    if missing:
        raise AdapterUnreadable(
            f"{folder} holds no PEFT checkpoint: {missing[0]} is missing; pass a folder that "
            "`tessera agent export` wrote"
        )


@contextmanager
def checkpoint_in_place(base: BaseModel, folder: Path) -> Iterator[None]:
    """Load a PEFT checkpoint around the base model with public peft; remove it on exit.

    Raises:
        AdapterInPlace: the base model carries an adapter already.
        AdapterUnreadable: the folder holds no checkpoint of this base model.
    """
    from peft import PeftModel  # seconds to import

    require_bare(base)
    require_checkpoint(folder)
    with _restore_modules(cast(nn.Module, base.model)):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # about merging, and about how peft calls other libraries
                cast(Any, PeftModel).from_pretrained(base.model, folder.resolve())
        except (OSError, ValueError, RuntimeError, KeyError, TypeError, SafetensorError) as error:
            raise AdapterUnreadable(
                f"{folder} holds no PEFT checkpoint for {base.slug} ({error!r}); pass a folder that "
                "`tessera agent export` wrote for this base model"
            ) from error
        yield


@contextmanager
def _restore_modules(model: nn.Module) -> Iterator[None]:
    """Restore the modules that peft replaces, also after a failure half-way."""
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
    """Return peft's LoraConfig as a dict, with `rank_pattern` for ranks other than the most frequent rank."""
    from peft import LoraConfig  # seconds to import

    ranks = {path: len(lora.A) for path, lora in sorted(factors.items())}
    rank = Counter(ranks.values()).most_common(1)[0][0]
    exceptions = {path: r for path, r in ranks.items() if r != rank}
    config = LoraConfig(
        task_type="CAUSAL_LM",
        base_model_name_or_path=model_name,
        inference_mode=True,
        r=rank,
        lora_alpha=rank,
        rank_pattern=exceptions,
        alpha_pattern=dict(exceptions),
        lora_bias=_has_bias(factors),
        fan_in_fan_out=any(_is_transposed(model, path) for path in factors),
    )
    return {**cast(Any, config).to_dict(), "target_modules": list(ranks)}


def _tensors(factors: Mapping[str, LoraFactors]) -> dict[str, np.ndarray]:
    """Map A (r, d_in), B (d_out, r) and, if any path has a bias, the bias (d_out,) to peft's tensor names."""
    with_bias = _has_bias(factors)
    tensors: dict[str, np.ndarray] = {}
    for path, lora in factors.items():
        tensors[f"{_PREFIX}.{path}.lora_A.weight"] = np.ascontiguousarray(lora.A)
        tensors[f"{_PREFIX}.{path}.lora_B.weight"] = np.ascontiguousarray(lora.B)
        if with_bias:
            bias = lora.bias if lora.bias is not None else np.zeros(len(lora.B), np.float32)
            tensors[f"{_PREFIX}.{path}.lora_B.bias"] = np.ascontiguousarray(bias)
    return tensors


def _has_bias(factors: Mapping[str, LoraFactors]) -> bool:
    return any(lora.bias is not None and lora.bias.any() for lora in factors.values())


def _is_transposed(model: nn.Module, path: str) -> bool:
    """Whether the innermost base layer at a path stores its weight as (d_in, d_out)."""
    module: object = model.get_submodule(path)
    while hasattr(module, "base_layer"):
        module = module.base_layer
    return isinstance(module, Conv1D)
