"""Rank pruning: ranks that shrank in a round are dropped, within limits."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pytest

from client_agent.adapters.base import Adapter
from client_agent.adapters.inject import inject_lora
from client_agent.adapters.rank_pruning import Pruner
from client_agent.adapters.ranks import rank_of, resize_ranks
from client_agent.model.examples import Example
from client_agent.model.loading import BaseModel
from client_agent.strategies.het_lora import Pruning
from schemas.messages.federations import AdapterPlan, TrainingPlan
from tests.scene.local_training import train_examples
from tests.scene.tensors import random_tensors

PLAN = AdapterPlan(kind="lora", rank=4, roles=("q", "down"))
PRUNING = Pruning(least=1, decay=0.6, strength=0.0)  # 4 -> 2


def pruner_of(adapter: Adapter, pruning: Pruning) -> Pruner:
    return Pruner(adapter, pruning.target, pruning.strength)


State = dict[str, np.ndarray]


@pytest.fixture
def adapter(tiny: Callable[..., BaseModel]) -> Iterator[Adapter]:
    with inject_lora(tiny(), PLAN) as adapter:
        adapter.load(random_tensors(adapter.layout, scale=0.2))
        yield adapter


def tail_times(state: State, factor: float) -> State:
    changed = {name: values.copy() for name, values in state.items()}
    for name, values in changed.items():
        if name.endswith("B"):
            values[:, 2:] *= factor
    return changed


def test_pruning_drops_shrunk_ranks_and_keeps_the_rest(adapter: Adapter) -> None:
    pruner = pruner_of(adapter, PRUNING)
    adapter.load(tail_times(adapter.state(), 0.9))
    before = adapter.state()
    pruned = pruner.pruned()
    assert rank_of(pruned) == 2
    for name, values in pruned.items():
        np.testing.assert_array_equal(values, before[name][:2] if name.endswith("A") else before[name][:, :2])
    for path, acts in adapter.as_lora().items():  # what is scored is what is sent
        layer, role = path.split(".")[2], "q" if "q_proj" in path else "down"
        sent = PLAN.scale * pruned[f"l{layer}.{role}.B"] @ pruned[f"l{layer}.{role}.A"]
        np.testing.assert_allclose(acts.B @ acts.A, sent, atol=1e-6)


def test_ranks_that_grew_are_not_pruned(adapter: Adapter) -> None:
    pruner = pruner_of(adapter, PRUNING)
    adapter.load(tail_times(adapter.state(), 1.1))
    assert rank_of(pruner.pruned()) == 4


def test_pruning_stops_at_the_minimum_rank(adapter: Adapter) -> None:
    assert [Pruning(3, 0.5, 0.0).target(rank) for rank in (8, 5, 3, 2)] == [4, 3, 3, 2]
    pruner = pruner_of(adapter, Pruning(least=4, decay=0.5, strength=0.0))
    adapter.load(tail_times(adapter.state(), 0.5))
    assert rank_of(pruner.pruned()) == 4


def test_penalty_draws_the_last_ranks_towards_zero(
    tiny: Callable[..., BaseModel], examples: list[Example]
) -> None:
    sizes = []
    for strength in (0.0, 100.0):
        base = tiny()
        with inject_lora(base, PLAN) as adapter:
            adapter.load(random_tensors(adapter.layout, scale=0.2))
            pruner = pruner_of(adapter, Pruning(least=1, decay=0.6, strength=strength))
            plan = TrainingPlan(steps=4, batch_size=4, max_length=64)
            train_examples(base, adapter, examples, plan, penalty=pruner.penalty)
            state = adapter.state()
            tails = [np.linalg.norm(values[:, 2:]) for name, values in state.items() if name.endswith("B")]
            sizes.append(float(np.sum(tails)))
    assert sizes[1] < 0.95 * sizes[0]


def test_padding_restores_cut_ranks_as_zeros() -> None:
    state = {"l0.q.A": np.ones((3, 2), np.float32), "l0.q.B": np.ones((4, 3), np.float32)}
    back = resize_ranks(resize_ranks(state, 2), 3)
    np.testing.assert_array_equal(back["l0.q.A"], [[1, 1], [1, 1], [0, 0]])
    np.testing.assert_array_equal(back["l0.q.B"][:, 2], np.zeros(4))


def test_padded_ranks_train(tiny: Callable[..., BaseModel], examples: list[Example]) -> None:
    base = tiny()
    plan = TrainingPlan(steps=1, batch_size=4, max_length=64)
    with inject_lora(base, PLAN) as adapter:
        few = resize_ranks({n: np.ones(s, np.float32) * 0.1 for n, s in adapter.layout.items()}, 2)
        adapter.load(resize_ranks(few, 4))
        train_examples(base, adapter, examples, plan)
        for name, values in adapter.state().items():
            assert (values[2:] if name.endswith("A") else values[:, 2:]).any()
