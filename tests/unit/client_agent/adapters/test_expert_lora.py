"""A bank of LoRA experts: its function, training and initialisation."""

from __future__ import annotations

from collections.abc import Callable
from math import sqrt

import numpy as np
import pytest
import torch

from client_agent.adapters.base import lowest_adapted_layer
from client_agent.adapters.expert_bank import experts_in
from client_agent.adapters.expert_lora import ExpertLora
from client_agent.adapters.inject import inject_lora
from client_agent.errors import AdapterInPlace, LayoutMismatch
from client_agent.model.examples import Example
from client_agent.model.loading import BaseModel
from schemas.maths.bank import bank_tensors, expert_tensors
from schemas.maths.start import from_start
from schemas.messages.federations import AdapterPlan, TrainingPlan
from tests.scene.local_training import train_examples
from tests.scene.models import logits_of
from tests.scene.tensors import random_tensors

PLAN = AdapterPlan(kind="lora", rank=3, scale=0.5, roles=("q", "k", "v", "down"))
TRAINING = TrainingPlan(steps=2, batch_size=4, max_length=64)
IDS = torch.tensor([[1, 5, 9, 14, 7, 22], [1, 8, 30, 6, 11, 2]])
EXPERTS = (0, 1, 4)


def bank_of(base: BaseModel, *, trained: bool = True) -> ExpertLora:
    adapter = ExpertLora(base, PLAN, EXPERTS, seed=7)
    if trained:
        adapter.load(random_tensors(adapter.layout, scale=0.2))
    return adapter


@pytest.mark.parametrize("architecture", ["llama", "phi3", "gpt2"])
@pytest.mark.parametrize("weights", [None, torch.tensor([0.25, 0.5])])
def test_bank_equals_weighted_sum_of_its_loras(
    tiny: Callable[..., BaseModel], architecture: str, weights: torch.Tensor | None
) -> None:
    base = tiny(architecture)
    alphas = [1.0, *([1.0, 1.0] if weights is None else weights.tolist())]
    state: dict[str, np.ndarray] = {}
    with bank_of(base) as adapter:
        bare = logits_of(base, IDS)
        adapter.select((4, 1), weights)
        mixed, lora = logits_of(base, IDS), adapter.as_lora()
        state = adapter.state()
    stacked = {}  # an ordinary LoRA of three times the rank has the ranks side by side
    for name in expert_tensors(0, state):
        parts = [expert_tensors(k, state)[name] for k in (0, 4, 1)]
        if name.endswith(".A"):
            stacked[name] = np.concatenate(parts)
        else:
            stacked[name] = np.concatenate([a * p for a, p in zip(alphas, parts, strict=True)], axis=1)
    with inject_lora(base, PLAN.model_copy(update={"rank": 9}), seed=0) as whole:
        whole.load(stacked)
        torch.testing.assert_close(mixed, logits_of(base, IDS), atol=2e-5, rtol=1e-4)
        for path, factors in whole.as_lora().items():
            np.testing.assert_allclose(lora[path].B @ lora[path].A, factors.B @ factors.A, atol=1e-5)
    assert (mixed - bare).abs().max() > 0.05


def test_token_weights_act_on_their_token_only(tiny: Callable[..., BaseModel]) -> None:
    base = tiny()
    with bank_of(base) as adapter:
        adapter.select((1,))
        whole = logits_of(base, IDS)
        adapter.select(())
        shared = logits_of(base, IDS)
        by_token = torch.ones(2, 6, 1)
        by_token[1, 3:] = 0.0
        adapter.select((1,), by_token)
        mixed = logits_of(base, IDS)
        torch.testing.assert_close(mixed[0], whole[0])
        torch.testing.assert_close(mixed[1, :3], whole[1, :3])
        assert (mixed[1, 3:] - whole[1, 3:]).abs().max() > 0.01
        adapter.weigh(torch.zeros(2, 6, 1))
        torch.testing.assert_close(logits_of(base, IDS), shared)
        with pytest.raises(AdapterInPlace, match="by token"):
            adapter.as_lora()


def test_experts_start_silent_with_distinct_scaled_a(tiny: Callable[..., BaseModel]) -> None:
    """The reference drew A sqrt(rank) times too small (B1), and one seed would make all experts equal."""
    base = tiny(hidden_size=64)
    plan = PLAN.model_copy(update={"rank": 16})
    bare = logits_of(base, IDS)
    with ExpertLora(base, plan, EXPERTS, seed=7) as adapter:
        adapter.select((1,))
        torch.testing.assert_close(logits_of(base, IDS), bare, atol=0, rtol=0)
        state = adapter.state()
        for name, values in state.items():
            if name.endswith(".B"):
                assert not values.any()
            else:
                expected = 1 / sqrt(3 * values.shape[1])  # of a uniform draw in +-1/sqrt(fan in)
                assert abs(values.std() / expected - 1) < 0.1
        a = [state[f"x{k}.l0.q.A"] for k in EXPERTS]
        assert all(abs(np.corrcoef(a[i].ravel(), a[j].ravel())[0, 1]) < 0.2 for i, j in ((0, 1), (1, 2)))
    with ExpertLora(base, plan, (0, 4), seed=7) as again:  # in another bank, on another machine
        np.testing.assert_array_equal(again.state()["x4.l0.q.A"], state["x4.l0.q.A"])
    layout, zeros = {n: v.shape for n, v in state.items()}, {n: np.zeros_like(v) for n, v in state.items()}
    for name, values in state.items():  # as both sides of a sum have it
        np.testing.assert_array_equal(from_start(name, zeros.__getitem__, 7, layout), values)
    with inject_lora(base, plan, seed=7) as lora:  # the shared expert is an ordinary LoRA of the plan
        np.testing.assert_array_equal(lora.state()["l0.q.A"], state["x0.l0.q.A"])


def test_selected_experts_alone_train(tiny: Callable[..., BaseModel], examples: list[Example]) -> None:
    """Defect 12: the reference kept adapters in bfloat16."""
    base = tiny(dtype=torch.bfloat16)
    with bank_of(base) as adapter:
        served = adapter.state()
        adapter.select((4,))
        assert experts_in(adapter.named_parameters()) == (0, 4)
        assert {tensor.dtype for tensor in adapter.named_parameters().values()} == {torch.float32}
        train_examples(base, adapter, examples, TRAINING)
        trained = adapter.state()
        for name, values in served.items():
            assert np.array_equal(trained[name], values) == name.startswith("x1.")


def test_gradient_checkpointing_gives_the_same_training(
    tiny: Callable[..., BaseModel], examples: list[Example]
) -> None:
    states = []
    for checkpointing in (False, True):
        base = tiny()
        plan = TRAINING.model_copy(update={"gradient_checkpointing": checkpointing})
        with bank_of(base) as adapter:
            adapter.select((1, 4), torch.tensor([0.3, 0.7]))
            train_examples(base, adapter, examples, plan)
            states.append(adapter.state())
    for name, values in states[0].items():
        np.testing.assert_allclose(values, states[1][name], atol=1e-6)


def test_bank_refuses_unfit_experts(tiny: Callable[..., BaseModel]) -> None:
    base = tiny()
    adapter = bank_of(base)
    assert lowest_adapted_layer(base) == 0
    for specialists in ((0,), (2,)):
        with pytest.raises(LayoutMismatch, match="no specialist"):
            adapter.select(specialists)
    with pytest.raises(LayoutMismatch, match="do not fit"):
        adapter.load(bank_tensors(0, random_tensors(adapter.expert_layout, scale=0.2)))
    adapter.remove()
    with pytest.raises(LayoutMismatch, match="shared expert"):
        ExpertLora(base, PLAN, (1, 2), seed=0)
    with pytest.raises(LayoutMismatch, match="not a tensor of a bank"):
        experts_in(["l0.q.A"])
