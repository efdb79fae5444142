"""Exports from base models in fewer bits, measured with public transformers and peft."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM

from client_agent.adapters.peft_export import precision_note, write_checkpoint
from client_agent.model.loading import load_base_model
from client_agent.model.quantization import bits_and_bytes, keep_differentiable, precision_of
from client_agent.settings import Quantization
from tests.scene.models import logits_array
from tests.unit.client_agent.adapters.peft_adapters import (
    EVERYTHING,
    IDS,
    factors_of,
    random_adapter,
    without_shifts,
)

ROUNDING = 0.03  # of the logits' own size; bfloat16 keeps 8 bits of each number, layer after layer
HELD: dict[str, tuple[Quantization, torch.dtype]] = {
    "bfloat16": ("none", torch.bfloat16),
    "nf4, bfloat16": ("nf4", torch.bfloat16),
    "int8, bfloat16": ("int8", torch.bfloat16),
}


def size(values: np.ndarray) -> float:
    return float(np.sqrt(np.square(values, dtype=np.float64).mean()))


def by_peft(source: str, checkpoint: Path, quantization: Quantization, dtype: torch.dtype) -> np.ndarray:
    """Return the logits of the checkpoint as public peft loads it."""
    config = bits_and_bytes(quantization, dtype)
    base: Any = AutoModelForCausalLM.from_pretrained(source, dtype=dtype, quantization_config=config)
    keep_differentiable(base)  # models as narrow as these cannot be repacked
    return logits_array(PeftModel.from_pretrained(base, checkpoint).eval(), IDS)


@pytest.mark.filterwarnings("ignore")  # of how public code calls other public code
@pytest.mark.parametrize("precision", HELD)
@pytest.mark.parametrize("architecture", ["llama", "gpt2", "phi3"])
def test_export_on_equally_loaded_base_differs_by_rounding(
    saved_model: Callable[..., str], tmp_path: Path, architecture: str, precision: str
) -> None:
    source, (quantization, dtype) = saved_model(architecture), HELD[precision]
    base = load_base_model(source, device=torch.device("cpu"), dtype=dtype, quantization=quantization)
    assert precision_of(base.model) == precision
    bare = logits_array(base.model, IDS)
    with random_adapter(base, EVERYTHING) as adapter:
        without_shifts(adapter)
        expected = logits_array(base.model, IDS)
        write_checkpoint(tmp_path, factors_of(adapter), base, source)
    same_way = size(by_peft(source, tmp_path, quantization, dtype) - expected)
    in_float32 = size(by_peft(source, tmp_path, "none", torch.float32) - expected)
    print(f"{same_way=:.4f} {in_float32=:.4f} effect={size(expected - bare):.4f} {size(expected)=:.4f}")
    assert 1e-4 < same_way < ROUNDING * size(expected)
    assert same_way < size(expected - bare) / 20
    if quantization == "nf4":
        assert in_float32 > 5 * same_way  # another base model, rather than the same rounded


def test_precision_note_states_measured_differences() -> None:
    assert "1e-5" in precision_note("float32")
    assert precision_note("float32", was="scored").startswith("scored on float32 weights")
    for precision in HELD:
        assert "if it loads the base model in the same way" in precision_note(precision)
        assert "float32 included" in precision_note(precision)
