"""Merge an adapter into the weights of its base model: a folder that needs no adapter support to be served.

An output shift becomes a bias where the architecture has one, and a rank of the weights elsewhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import nn
from transformers import AutoConfig, PreTrainedModel
from transformers.pytorch_utils import Conv1D

from client_agent.adapters.base import LoraFactors
from client_agent.adapters.peft_export import below_layer
from client_agent.model.complete import load_complete
from client_agent.model.loading import BaseModel

_OPTIONAL_BIASES: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "llama": {"attention_bias": ("q", "k", "v", "o"), "mlp_bias": ("gate", "up", "down")}
}
"""The roles that get a bias by a setting of config.json which transformers, vLLM and llama.cpp read."""


def holds_shift(base: BaseModel, path: str) -> bool:
    """Whether a module of the merged model can have a bias."""
    if getattr(base.model.get_submodule(path), "bias", None) is not None:
        return True
    return any(path.endswith(name) for names in _settings(base).values() for name in names)


def write_merged(
    folder: Path,
    source: str,
    factors: Mapping[str, LoraFactors],
    base: BaseModel,
    dtype: torch.dtype | None = None,
) -> None:
    """Write config, weights, tokenizer and chat template.

    `source` is the folder or hub id of the dense weights; `dtype` is that of its files by default. Sums are
    in float32.
    """
    model = _dense_model(source, factors, base, dtype)
    with torch.no_grad():
        for path, lora in factors.items():
            _add(model.get_submodule(path), lora)
    model.save_pretrained(folder)
    cast(Any, base.tokenizer).save_pretrained(folder)


def dtype_of_merged(folder: Path) -> torch.dtype:
    """Return the dtype of merged weights, by their config.json."""
    return cast(torch.dtype, cast(Any, AutoConfig).from_pretrained(folder, local_files_only=True).dtype)


def _settings(base: BaseModel) -> dict[str, tuple[str, ...]]:
    """Return the names of modules that can get a bias, by the setting of config.json that adds it."""
    by_setting = _OPTIONAL_BIASES.get(base.architecture, {})
    return {
        setting: tuple(
            below_layer(linear.path) for role, linear in base.parts.roles[0].items() if role in roles
        )
        for setting, roles in by_setting.items()
    }


def _dense_model(
    source: str, factors: Mapping[str, LoraFactors], base: BaseModel, dtype: torch.dtype | None
) -> PreTrainedModel:
    """Load the dense weights, with zero biases where a shift needs one."""
    # From the dense files, since the silo's own model may be quantised.
    config = cast(Any, AutoConfig).from_pretrained(source, local_files_only=True)
    shifted = [path for path, lora in factors.items() if lora.bias is not None]
    added = {
        setting: names
        for setting, names in _settings(base).items()
        if not getattr(config, setting) and any(path.endswith(name) for path in shifted for name in names)
    }
    for setting in added:
        setattr(config, setting, True)
    biased = tuple(name for names in added.values() for name in names)

    def is_added(tensor: str) -> bool:
        path, _, kind = tensor.rpartition(".")
        return kind == "bias" and path.endswith(biased)

    model = load_complete(
        source, is_added=is_added, config=config, dtype=dtype or "auto", local_files_only=True
    )
    with torch.no_grad():
        for path, module in model.named_modules():
            if path.endswith(biased):
                # A new bias is loaded with arbitrary values.
                cast(nn.Parameter, module.bias).zero_()
    return model


def _add(module: nn.Module, lora: LoraFactors) -> None:
    change = torch.from_numpy(np.ascontiguousarray(lora.B @ lora.A))  # (d_out, d_in)
    weight = cast(nn.Parameter, module.weight)
    # Summed in float32 and rounded once; small changes vanish in a bfloat16 sum.
    weight.copy_(weight.float() + (change.T if isinstance(module, Conv1D) else change))
    if lora.bias is not None:
        bias = cast(nn.Parameter, module.bias)
        bias.copy_(bias.float() + torch.from_numpy(lora.bias))
