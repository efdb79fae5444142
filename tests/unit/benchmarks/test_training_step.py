"""The benchmark of a training step at a small size: built models, full batches, all adapters."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

from benchmarks.random_llama import Size, built, full_batch, saved
from benchmarks.training_step import EVERY, PQ, SAME, measure
from client_agent.model.examples import encode_all
from client_agent.model.loading import BaseModel, load_base_model
from client_agent.settings import Quantization

CPU = torch.device("cpu")
SMALL = Size(64, 128, 4, 4, 2, 256, batch=2, length=32)
every_number_of_bits = pytest.mark.parametrize("quantization", ["none", "nf4", "int8"])


@every_number_of_bits
def test_a_built_model_equals_a_loaded_one(tmp_path: Path, quantization: Quantization) -> None:
    folder = saved(SMALL, tmp_path, device=CPU)
    loaded = load_base_model(folder, device=CPU, dtype=torch.bfloat16, quantization=quantization)
    model = built(SMALL, device=CPU, dtype=torch.bfloat16, quantization=quantization)
    assert _parts(model) == _parts(loaded)
    assert model.shapes == loaded.shapes
    assert model.model.get_memory_footprint() == loaded.model.get_memory_footprint()


def test_batches_are_full() -> None:
    base = built(SMALL, device=CPU, dtype=torch.float32, quantization="none")
    texts = encode_all(full_batch(SMALL), base.tokenizer, SMALL.length)
    assert [len(text.ids) for text in texts] == [SMALL.length] * SMALL.batch


@pytest.mark.slow
@every_number_of_bits
def test_the_kinds_of_adapters_are_measured_in_turn(quantization: Quantization) -> None:
    measured = measure(
        SMALL, device=CPU, quantization=quantization, rank=4, checkpointing=True, repetitions=2, steps=1
    )
    rows = measured["adapters"]
    assert list(rows) == [PQ, SAME, EVERY]
    assert rows[PQ]["ratio"] == 1
    for row in rows.values():
        assert [len(seconds) for seconds in row["seconds_each"]] == [1, 1]
        assert math.isclose(row["tokens_per_second"] * row["seconds"], SMALL.batch * SMALL.length)
        assert row["peak_mib"] > 0
    one_layer = 4 * (64 + 64) * 2 + 4 * (64 + 32) * 2 + 4 * (64 + 128) * 3  # q o, k v, gate up down
    assert rows[SAME]["trainable"] == rows[EVERY]["trainable"] == 4 * one_layer
    assert rows[PQ]["trainable"] == 4 * 7 * (4 * 4 + 4)
    assert measured["parameters"] == sum(
        p.numel()
        for p in built(SMALL, device=CPU, dtype=torch.float32, quantization="none").model.parameters()
    )


def _parts(base: BaseModel) -> list[tuple[str, str, object, bool]]:
    weights = dict(base.model.named_parameters())
    return [
        (path, type(module).__name__, getattr(weights.get(f"{path}.weight"), "dtype", None), module.training)
        for path, module in base.model.named_modules()
    ]
