"""Training on a GPU: models of real sizes learn in 16, 8 and 4 bits, in the memory that was foretold."""

from __future__ import annotations

import gc
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from benchmarks.random_llama import Size, full_batch
from client_agent.adapters.base import Adapter
from client_agent.adapters.inject import inject_lora
from client_agent.model.examples import encode_all
from client_agent.model.loading import BaseModel, load_base_model
from client_agent.model.tokens import collate, pad_id
from client_agent.settings import Quantization
from client_agent.sketches.gradient import sketch_of
from client_agent.training.evaluate import evaluate
from client_agent.training.loop import TrainingOutcome
from client_agent.training.memory import held_bytes, step_memory
from schemas.messages.federations import AdapterPlan, SignaturePlan, TrainingPlan
from tests.gpu.conftest import ONE_BILLION, SEVEN_BILLION
from tests.scene.local_training import train_examples
from tests.scene.models import inject_random_pq
from tests.scene.tiny_models import ARCHITECTURES, save_model

GIB, MIB = 2**30, 2**20
# On a CPU a step takes .8 to 1.1 of it. Here kernels have workspaces, and attention keeps less.
LEAST_OF_FORETOLD, MOST_OF_FORETOLD = 0.5, 1.25
ADAPTER = AdapterPlan(rank=32, blocks=4)
every_number_of_bits = pytest.mark.parametrize("quantization", ["none", "nf4", "int8"])
OneBillion = Callable[[Quantization], BaseModel]


def train_full_batch(
    base: BaseModel, adapter: Adapter, size: Size, steps: int, **changes: bool
) -> TrainingOutcome:
    """Train on one and the same full batch."""
    plan = TrainingPlan(
        steps=steps,
        batch_size=size.batch,
        max_length=size.length,
        **{"gradient_checkpointing": True} | changes,
    )
    return train_examples(base, adapter, full_batch(size), plan)


def scored_trained_scored(base: BaseModel, size: Size) -> None:
    """Score, train and score the bare model's adapter; each must see what the one before left."""
    examples = full_batch(size)
    with inject_random_pq(base, ADAPTER) as adapter:
        before = evaluate(base, examples, max_length=size.length).loss
        losses = train_full_batch(base, adapter, size, steps=20).losses
        after = evaluate(base, examples, max_length=size.length).loss
        assert losses[0] == pytest.approx(before, rel=0.02)
        assert losses[-1] < losses[0] - 0.3
        assert after < before - 0.3
        assert all(p.device.type == "cuda" for p in adapter.named_parameters().values())
        assert {p.dtype for p in adapter.named_parameters().values()} == {torch.float32}


@every_number_of_bits
@pytest.mark.parametrize("model_type", ARCHITECTURES)
def test_every_architecture_learns_in_every_number_of_bits(
    gpu: torch.device, tmp_path: Path, model_type: str, quantization: Quantization
) -> None:
    folder = save_model(tmp_path, model_type, hidden_size=64, head_dim=16, intermediate_size=64)
    base = load_base_model(folder, device=gpu, dtype=torch.bfloat16, quantization=quantization)
    size = Size(64, 64, 4, 4, 2, 64, batch=4, length=32)
    for inject in (inject_random_pq, inject_lora):
        with inject(base, ADAPTER) as adapter:
            losses = train_full_batch(base, adapter, size, steps=10).losses
        assert losses[-1] < losses[0] - 0.1
    first, again = (sketch_of(base, full_batch(size), SignaturePlan(dim=64)).vector for _ in range(2))
    assert first @ again > 0.99 * (first @ first) > 0.0, "the same texts say the same"


@every_number_of_bits
def test_one_billion_parameters_learn(
    gpu: torch.device, one_billion: OneBillion, quantization: Quantization
) -> None:
    base = one_billion(quantization)
    assert {p.device.type for p in base.model.parameters()} == {"cuda"}
    assert {b.device.type for b in base.model.buffers()} == {"cuda"}
    scored_trained_scored(base, ONE_BILLION)


def test_seven_billion_parameters_learn_in_ten_gigabytes(seven_billion: BaseModel) -> None:
    assert held_bytes(seven_billion) < 4.5 * GIB
    scored_trained_scored(seven_billion, SEVEN_BILLION)
    assert torch.cuda.max_memory_allocated() < 10 * GIB


def test_few_bits_take_the_memory_that_they_should(gpu: torch.device, one_billion: OneBillion) -> None:
    memory = {}
    for quantization in ("none", "int8", "nf4"):
        before = torch.cuda.memory_allocated()
        base = one_billion(quantization)
        memory[quantization] = torch.cuda.memory_allocated() - before
        assert memory[quantization] == pytest.approx(held_bytes(base), rel=0.1)
        del base
        gc.collect()
    assert memory["nf4"] < memory["int8"] < memory["none"]


@pytest.mark.parametrize("quantization", ["none", "nf4"])
def test_checkpointing_saves_memory_and_changes_no_loss(
    gpu: torch.device, one_billion: OneBillion, quantization: Quantization
) -> None:
    base = one_billion(quantization)
    peaks, first = [], []
    for checkpointing in (False, True):
        torch.cuda.reset_peak_memory_stats()
        with inject_random_pq(base, ADAPTER) as adapter:
            outcome = train_full_batch(
                base, adapter, ONE_BILLION, steps=3, gradient_checkpointing=checkpointing
            )
        peaks.append(torch.cuda.max_memory_allocated())
        first.append(outcome.losses)
    assert first[1] == pytest.approx(first[0], rel=1e-2)
    assert peaks[1] < 0.8 * peaks[0]


@pytest.mark.parametrize("quantization", ["none", "nf4"])
def test_a_step_needs_the_memory_that_was_foretold(
    gpu: torch.device, one_billion: OneBillion, quantization: Quantization
) -> None:
    base = one_billion(quantization)
    texts = encode_all(full_batch(ONE_BILLION), base.tokenizer, ONE_BILLION.length)
    with inject_random_pq(base, ADAPTER) as adapter:
        foretold = step_memory(base, adapter, collate(texts, pad=pad_id(base.tokenizer)).to(gpu))
    tokens = ONE_BILLION.batch * ONE_BILLION.length
    for checkpointing, most in ((False, foretold.step), (True, foretold.recomputing_step)):
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        with inject_random_pq(base, ADAPTER) as adapter:
            train_full_batch(base, adapter, ONE_BILLION, steps=3, gradient_checkpointing=checkpointing)
        bytes_per_token = (torch.cuda.max_memory_allocated() - before) / most(tokens)
        print(f"{quantization=} {checkpointing=}: {bytes_per_token:.2f} of what was foretold")
        assert LEAST_OF_FORETOLD < bytes_per_token < MOST_OF_FORETOLD


@every_number_of_bits
def test_memory_is_flat_over_fifty_rounds(
    gpu: torch.device, one_billion: OneBillion, quantization: Quantization
) -> None:
    base = one_billion(quantization)
    size = Size(2048, 8192, 16, 32, 8, 128256, batch=2, length=64)
    examples = full_batch(size)
    allocated = []
    for _ in range(50):
        with inject_random_pq(base, ADAPTER) as adapter:
            evaluate(base, examples, max_length=size.length)
            train_full_batch(base, adapter, size, steps=2)
            evaluate(base, examples, max_length=size.length)
        sketch_of(base, examples, SignaturePlan(dim=64))
        del adapter
        gc.collect()
        allocated.append(torch.cuda.memory_allocated())
    assert max(allocated[10:]) - min(allocated[10:]) < MIB, allocated
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in base.model.modules())
