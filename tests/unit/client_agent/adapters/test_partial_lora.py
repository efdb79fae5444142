"""Adapters of which one factor travels: sent, private and trained tensors."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from client_agent.adapters.base import Adapter
from client_agent.adapters.inject import inject_lora
from client_agent.adapters.partial_lora import PartialLora
from client_agent.model.examples import Example
from client_agent.model.loading import BaseModel
from client_agent.rounds.strategy import load_strategy
from schemas.maths.adapter import factor_of
from schemas.messages.federations import AdapterPlan, TrainingPlan
from tests.scene.local_training import train_examples
from tests.scene.tensors import zero_tensors

PLAN = AdapterPlan(kind="lora", rank=4, roles=("q", "down"))
TRAINING = TrainingPlan(steps=2, batch_size=4, max_length=64)
SENT = {"ffa_lora": "B", "fedsa_lora": "A"}
STAYS = {"A": "B", "B": "A"}


def injected(base: BaseModel, name: str) -> Adapter:
    strategy = load_strategy(name)
    return PartialLora(inject_lora(base, PLAN, seed=3), strategy.options.travels, strategy.trains)


def train_adapter(base: BaseModel, adapter: Adapter, examples: list[Example]) -> None:
    train_examples(base, adapter, examples, TRAINING)


@pytest.mark.parametrize("name", SENT)
@pytest.mark.parametrize("architecture", ["llama", "gpt2"])
def test_one_factor_travels_and_other_is_private(
    tiny: Callable[..., BaseModel], examples: list[Example], name: str, architecture: str
) -> None:
    base = tiny(architecture)
    with inject_lora(base, PLAN, seed=3) as whole:
        everything = whole.layout
    with injected(base, name) as adapter:
        adapter.load(zero_tensors(adapter.layout))
        train_adapter(base, adapter, examples)
        assert adapter.layout == {n: s for n, s in everything.items() if factor_of(n) == SENT[name]}
        private = adapter.private_state()
        assert {factor_of(n) for n in private} == {STAYS[SENT[name]]}
        assert len(private) + len(adapter.layout) == len(everything)
        assert all(values.any() for values in adapter.state().values())


def test_ffa_lora_never_moves_a(tiny: Callable[..., BaseModel], examples: list[Example]) -> None:
    base = tiny()
    with inject_lora(base, PLAN, seed=3) as whole:
        start = whole.state()
    with injected(base, "ffa_lora") as adapter:
        adapter.load(zero_tensors(adapter.layout))
        train_adapter(base, adapter, examples)
        assert {factor_of(name) for name in adapter.named_parameters()} == {"B"}
        for name, values in adapter.private_state().items():
            np.testing.assert_array_equal(values, start[name.removeprefix("private.")])


def test_fedsa_lora_keeps_b_when_a_is_served(tiny: Callable[..., BaseModel], examples: list[Example]) -> None:
    base = tiny()
    with injected(base, "fedsa_lora") as adapter:
        adapter.load(zero_tensors(adapter.layout))
        assert not any(values.any() for values in adapter.private_state().values())  # a joiner's B
        train_adapter(base, adapter, examples)
        private = adapter.private_state()
        served = {name: values + 1 for name, values in adapter.state().items()}
    assert all(values.any() for values in private.values())
    with injected(base, "fedsa_lora") as again:
        again.load(served)
        again.load_private(private)
        factors = again.as_lora()[base.parts.path(0, "q")]
        np.testing.assert_allclose(factors.B, PLAN.scale * private["private.l0.q.B"])
        np.testing.assert_array_equal(factors.A, served["l0.q.A"])
