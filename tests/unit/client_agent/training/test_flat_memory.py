"""Fifty rounds in one process leave no hook, module, tensor or memory behind."""

from __future__ import annotations

import gc
from collections.abc import Callable

import psutil
import pytest
import torch

from client_agent.model.examples import Example
from client_agent.model.loading import BaseModel, load_base_model
from client_agent.settings import Quantization
from client_agent.sketches.gradient import sketch_of
from client_agent.training.evaluate import evaluate
from schemas.messages.federations import AdapterPlan, SignaturePlan, TrainingPlan
from tests.scene.local_training import train_examples
from tests.scene.models import inject_random_pq

MIB = 2**20
ROUNDS, WARM_UP = 50, 10
ADAPTER = AdapterPlan(rank=32, blocks=2)
PLAN = TrainingPlan(steps=2, batch_size=4, max_length=64, gradient_checkpointing=True)
# All equally long: the kernels' own caches grow with every new shape, up to a limit.
EXAMPLES = [Example(f"rev {letter * 4}=", letter * 4) for letter in "abcdefgh"]


def one_round(base: BaseModel, number: int) -> None:
    """Score, train, score, sign: what `client_agent.rounds.steps` does with a model in a round."""
    with inject_random_pq(base, ADAPTER, gated=True) as adapter:
        evaluate(base, EXAMPLES, max_length=64)
        train_examples(base, adapter, EXAMPLES, PLAN, round_number=number)
        evaluate(base, EXAMPLES, max_length=64)
    sketch_of(base, EXAMPLES, SignaturePlan(dim=64))


def tensors() -> int:
    gc.collect()
    return sum(issubclass(type(item), torch.Tensor) for item in gc.get_objects())


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("quantization", ["none", "nf4", "int8"])
def test_memory_is_flat_over_fifty_rounds(
    saved_model: Callable[..., str], quantization: Quantization
) -> None:
    dtype = torch.float32 if quantization == "none" else torch.bfloat16
    folder = saved_model(hidden_size=64, head_dim=16, num_hidden_layers=2)
    base = load_base_model(folder, device=torch.device("cpu"), dtype=dtype, quantization=quantization)
    modules = [(path, module) for path, module in base.model.named_modules()]
    process = psutil.Process()
    alive: list[int] = []
    resident: list[int] = []
    for number in range(1, ROUNDS + 1):
        one_round(base, number)
        alive.append(tensors())
        resident.append(process.memory_info().rss)
    assert len(set(alive[WARM_UP:])) == 1, alive
    assert max(resident[-5:]) - max(resident[:WARM_UP]) < 8 * MIB, resident
    assert [(path, module) for path, module in base.model.named_modules()] == modules
    for _, module in modules:
        assert not module._forward_hooks
        assert not module._forward_pre_hooks
        assert not module._backward_hooks
