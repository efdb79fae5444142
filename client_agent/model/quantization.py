"""Load a base model's linear layers in 4 or 8 bits, such that adapters around them can train.

`nf4` is QLoRA's 4-bit NormalFloat with double quantisation (arXiv 2305.14314, section 3), `int8` is LLM.int8
(arXiv 2208.07339). Embeddings, norms and head stay in the model's dtype. peft's
`prepare_model_for_kbit_training` is not needed: norms compute in float32, adapters and loss are float32, and
checkpointing is not reentrant.
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

# bitsandbytes warns per layer and step that int8 casts inputs, and advises a package that uses the hub.
for _noisy in ("bitsandbytes.autograd._functions", "bitsandbytes.backends.cpu.ops"):
    logging.getLogger(_noisy).setLevel(logging.ERROR)


def bits_and_bytes(quantization: Quantization, compute: torch.dtype) -> BitsAndBytesConfig | None:
    """Return the `quantization_config` of `from_pretrained`; `compute` is the dtype of nf4 products."""
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
    """Return the precision of a model's weights: `float32`, `bfloat16`, or `nf4, bfloat16` for 4 bits."""
    dtype = str(cast(Any, model).dtype).removeprefix("torch.")
    if getattr(model, "is_loaded_in_4bit", False):
        return f"nf4, {dtype}"
    return f"int8, {dtype}" if getattr(model, "is_loaded_in_8bit", False) else dtype


def is_quantised(model: nn.Module) -> bool:
    """Whether a model's linear layers are in 4 or 8 bits."""
    return any(getattr(model, name, False) for name in ("is_loaded_in_4bit", "is_loaded_in_8bit"))


def keep_differentiable(model: nn.Module) -> None:
    """Prevent 4-bit layers from repacking their weights at the first forward pass without gradients.

    On CPUs with AVX512-BF16 they repack permanently, and the kernel for packed weights has no backward pass:
    a model could not train after it was scored.
    """
    for module in model.modules():
        if hasattr(module, "support_avx512bf16_for_cpu"):
            # Such CPUs repack weights at the first pass without gradients, and the packed kernel has no
            # backward pass.
            cast(Any, module).support_avx512bf16_for_cpu = False
