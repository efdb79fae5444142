"""Hold a base model's linear layers in 4 or 8 bits, so that adapters around them still train.

`nf4` is QLoRA's 4-bit NormalFloat with double quantisation (arXiv 2305.14314, section 3), `int8` is LLM.int8
(arXiv 2208.07339). Embeddings, norms and the head stay in the model's own type. Nothing else of the usual
preparation for training in few bits is needed here: norms compute their statistics in float32 whatever their
weights are, adapters and the loss are float32, and layers are recomputed without the input's gradient.
Knows no adapter.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import nn

from client_agent.settings import Quantization

if TYPE_CHECKING:
    from transformers import BitsAndBytesConfig

# bitsandbytes says per layer and step that int8 casts its inputs, and advises a package that goes to the hub.
for _noisy in ("bitsandbytes.autograd._functions", "bitsandbytes.backends.cpu.ops"):
    logging.getLogger(_noisy).setLevel(logging.ERROR)


def bits_and_bytes(quantization: Quantization, compute: torch.dtype) -> BitsAndBytesConfig | None:
    """Say it as `from_pretrained` wants it, or give None for none; nf4 multiplies in the type `compute`."""
    from transformers import BitsAndBytesConfig

    config = cast("Callable[..., BitsAndBytesConfig]", BitsAndBytesConfig)
    match quantization:
        case "none":
            return None
        case "nf4":
            return config(
                load_in_4bit=True,
                bnb_4bit_quant_type="nf4",
                bnb_4bit_use_double_quant=True,
                bnb_4bit_compute_dtype=compute,
            )
        case "int8":
            return config(load_in_8bit=True)


def precision_of(model: nn.Module) -> str:
    """Say how a model's weights are held: `float32`, `bfloat16`, or `nf4, bfloat16` for 4 bits beside it."""
    dtype = str(cast(Any, model).dtype).removeprefix("torch.")
    if getattr(model, "is_loaded_in_4bit", False):
        return f"nf4, {dtype}"
    return f"int8, {dtype}" if getattr(model, "is_loaded_in_8bit", False) else dtype


def keep_differentiable(model: nn.Module) -> None:
    """Stop 4-bit layers from repacking their weights at the first forward pass without gradients.

    On CPUs with AVX512-BF16 they would, for good, and their kernel for packed weights has no backward pass:
    a model that was scored once could never train again.
    """
    for module in model.modules():
        if hasattr(module, "support_avx512bf16_for_cpu"):
            cast(Any, module).support_avx512bf16_for_cpu = False
