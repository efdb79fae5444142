"""A bank of experts over P and Q: its function and training."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from client_agent.adapters.base import lowest_adapted_layer, require_bare
from client_agent.adapters.expert_bank import experts_in
from client_agent.adapters.expert_pq import ExpertPQ
from client_agent.adapters.frames import Frames, random_frames
from client_agent.adapters.inject import inject_pq
from client_agent.errors import LayoutMismatch
from client_agent.model.examples import Example
from client_agent.model.loading import BaseModel
from schemas.maths.bank import expert_tensors
from schemas.messages.federations import AdapterPlan, TrainingPlan
from tests.scene.local_training import train_examples
from tests.scene.models import logits_of
from tests.scene.tensors import random_tensors

PLAN = AdapterPlan(rank=4, blocks=2, scale=1.5, roles=("q", "v", "down"))
IDS = torch.tensor([[1, 5, 9, 14, 7, 22], [1, 8, 30, 6, 11, 2]])
EXPERTS = (0, 2, 3)


def framed(base: BaseModel, plan: AdapterPlan = PLAN) -> Frames:
    return random_frames(base, plan, 0)


@pytest.mark.parametrize("architecture", ["llama", "phi3"])
@pytest.mark.parametrize("weights", [None, torch.tensor([0.25, 0.75])])
def test_mixture_equals_summed_p_and_q(
    tiny: Callable[..., BaseModel], architecture: str, weights: torch.Tensor | None
) -> None:
    base = tiny(architecture)
    alphas = [1.0, *([1.0, 1.0] if weights is None else weights.tolist())]
    with ExpertPQ(base, PLAN, framed(base), EXPERTS) as adapter:
        bare = logits_of(base, IDS)
        state = random_tensors(adapter.layout, scale=0.3)
        adapter.load(state)
        adapter.select((3, 2), weights)
        mixed, lora = logits_of(base, IDS), adapter.as_lora()
        adapter.weigh(torch.tensor(alphas[1:]).expand(2, 6, 2))
        torch.testing.assert_close(logits_of(base, IDS), mixed, atol=1e-5, rtol=1e-4)
    parts = [expert_tensors(k, state) for k in (0, 3, 2)]
    summed = {n: sum(a * p[n] for a, p in zip(alphas, parts, strict=True)) for n in parts[0]}
    with inject_pq(base, PLAN, framed(base), gated=False) as whole:
        whole.load({name: np.float32(values) for name, values in summed.items()})
        torch.testing.assert_close(mixed, logits_of(base, IDS), atol=1e-5, rtol=1e-4)
        for path, factors in whole.as_lora().items():
            np.testing.assert_allclose(lora[path].B, factors.B, atol=1e-5)
            assert lora[path].bias is not None
            np.testing.assert_allclose(lora[path].bias, factors.bias, atol=1e-5)
    assert (mixed - bare).abs().max() > 0.05
    require_bare(base)


@pytest.mark.parametrize("bias", [True, False])
def test_selected_experts_train_at_frame_rates(
    tiny: Callable[..., BaseModel], examples: list[Example], bias: bool
) -> None:
    base, plan = tiny(), PLAN.model_copy(update={"bias": bias})
    training = TrainingPlan(steps=2, batch_size=4, max_length=64)
    frames = {name: type(f)(f.A, f.B, rate=2.0 if "q" in name else 0.5) for name, f in framed(base).items()}
    with ExpertPQ(base, plan, frames, EXPERTS) as adapter:
        assert lowest_adapted_layer(base) == 1
        adapter.select((3,))
        rates = {group["lr"]: len(group["params"]) for group in adapter.parameter_groups(0.1)}
        assert rates == pytest.approx({0.2: 4 * (1 + bias), 0.05: 8 * (1 + bias)})
        assert experts_in(adapter.named_parameters()) == (0, 3)
        train_examples(base, adapter, examples, training)
        trained = adapter.state()
        assert all(values.any() == (not name.startswith("x2.")) for name, values in trained.items())
        assert any(name.endswith(".Q") for name in trained) == bias


def test_bank_over_p_and_q_refuses_private_rank(tiny: Callable[..., BaseModel]) -> None:
    base = tiny()
    plan = PLAN.model_copy(update={"private_rank": 2})
    with pytest.raises(LayoutMismatch, match="private_rank"):
        ExpertPQ(base, plan, framed(base), EXPERTS)
    require_bare(base)
