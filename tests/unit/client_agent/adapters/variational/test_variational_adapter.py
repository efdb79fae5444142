"""Variational LoRA around a real model: its training, travelling tensors and private state."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from client_agent.adapters.inject import inject_lora
from client_agent.adapters.variational.adapter import VariationalAdapter, posterior_of
from client_agent.adapters.variational.posterior import START
from client_agent.model.examples import Example
from client_agent.model.loading import BaseModel
from client_agent.training.loop import TrainingOutcome
from schemas.messages.federations import AdapterPlan, TrainingPlan
from schemas.strategies.ca_pfl import CaPflOptions
from tests.scene.local_training import train_with_penalty
from tests.scene.tensors import assert_same_bytes, random_tensors, zero_tensors

PLAN = AdapterPlan(kind="lora", rank=3, scale=4.0, roles=("q", "v"))
TRAINING = TrainingPlan(steps=6, batch_size=4, learning_rate=0.003, max_length=64)


@contextmanager
def placed(base: BaseModel, **options: Any) -> Iterator[VariationalAdapter]:
    lora = inject_lora(base, PLAN, seed=0)
    with VariationalAdapter(lora, base, CaPflOptions(**options)) as adapter:
        yield adapter


def train_variational(
    base: BaseModel, adapter: VariationalAdapter, examples: list[Example], **changes: Any
) -> TrainingOutcome:
    return train_with_penalty(base, adapter, examples, TRAINING.model_copy(update=changes))


def test_posterior_has_its_own_learning_rate(tiny: Callable[..., BaseModel], examples: list[Example]) -> None:
    base = tiny()
    with placed(base) as adapter:
        adapter.load(zero_tensors(adapter.layout))
        begun = adapter.private_state()["posterior.u"]
        train_variational(base, adapter, examples, learning_rate=1e-9, weight_decay=0.1)
        assert np.abs(adapter.private_state()["posterior.u"] - begun).max() > 0.02


def test_loss_has_a_gradient_along_the_concentration(
    tiny: Callable[..., BaseModel], examples: list[Example]
) -> None:
    base = tiny()
    with placed(base, warm_rounds=0, alpha_s=1.0, alpha_p=1e-9, alpha_f=0.0) as adapter:
        adapter.load(zero_tensors(adapter.layout))
        parameters = adapter.named_parameters()
        torch.autograd.backward(adapter.penalty(examples, 64, 1)(parameters))
        u = parameters["posterior.u"]
        assert u.grad is not None
        gamma = posterior_of(adapter.private_state())
        along = (gamma * u.grad / torch.sigmoid(u.detach())).sum(0)  # a dL/da + b dL/db, (M, r)
    # 0 if the term depends on a/b alone; here B = 0, and it is a psi'(a) - 1 over the M r values
    expected = (2 * float(torch.polygamma(1, torch.tensor(2.0))) - 1) / along.numel()
    torch.testing.assert_close(along, torch.full_like(along, expected), rtol=1e-3, atol=0)


def test_adapter_and_prior_travel_and_posterior_stays(tiny: Callable[..., BaseModel]) -> None:
    base = tiny()
    with placed(base) as adapter:
        assert {name.rpartition(".")[2] for name in adapter.layout} == {"A", "B", "prior"}
        assert adapter.layout["l0.q.prior"] == (2, 3)
        assert adapter.private_state().keys() == {"posterior.u"}
        served = zero_tensors(adapter.layout)
        adapter.load(served)
        assert not adapter.state()["l0.q.prior"].any()  # where everybody starts: a = b = 2


def test_stored_counts_of_idle_ranks_are_ignored(tiny: Callable[..., BaseModel]) -> None:
    base = tiny()
    with placed(base) as adapter:
        served = random_tensors(adapter.layout, scale=0.1)
        adapter.load(served)
        private = {name: values + np.float32(0.3) for name, values in adapter.private_state().items()}
        idle = np.full(private["posterior.u"].shape[1:], 2, np.float32)  # version 0.2.0: no rank is trained
        adapter.load_private(private | {"ranks.below": idle})
        assert_same_bytes(adapter.private_state(), private)
        assert adapter.named_parameters()["l0.q.A"].shape == adapter.layout["l0.q.A"]
        assert adapter.as_lora()


def test_mean_prior_is_moving_average_of_posteriors(
    tiny: Callable[..., BaseModel],
) -> None:
    base = tiny()
    served, sent, posteriors = 0.25, [], []
    with placed(base) as adapter:
        for client in range(2):
            adapter.load({n: v + np.float32(served) for n, v in zero_tensors(adapter.layout).items()})
            rng = np.random.default_rng(client)
            u = rng.normal(size=adapter.private_state()["posterior.u"].shape).astype(np.float32)
            adapter.load_private(adapter.private_state() | {"posterior.u": u})
            adapter.end_round()
            sent.append(adapter.state()["l1.v.prior"])
            posteriors.append(posterior_of({"posterior.u": u}).numpy()[:, 3])  # l0.q, l0.v, l1.q, l1.v
    weights = (0.3, 0.7)
    mean = sum(w * offset for w, offset in zip(weights, sent, strict=True)) + START
    expected = 0.9 * (START + served) + 0.1 * sum(w * p for w, p in zip(weights, posteriors, strict=True))
    np.testing.assert_allclose(mean, expected, rtol=1e-5)


def test_newcomers_posterior_starts_at_served_prior(tiny: Callable[..., BaseModel]) -> None:
    base = tiny()
    with placed(base) as adapter:
        adapter.load({n: v + np.float32(0.5) for n, v in zero_tensors(adapter.layout).items()})
        u = adapter.private_state()["posterior.u"]
    np.testing.assert_allclose(posterior_of({"posterior.u": u}), START + 0.5, rtol=1e-5)


def test_proximal_distance_holds_the_adapter_back(
    tiny: Callable[..., BaseModel], examples: list[Example]
) -> None:
    base, lengths = tiny(), []
    for alpha_f in (0.0, 100.0):
        with placed(base, alpha_f=alpha_f, alpha_s=0.0) as adapter:
            adapter.load(zero_tensors(adapter.layout))
            start = adapter.state()
            train_variational(base, adapter, examples, steps=12)
            end = adapter.state()
            lengths.append(sum(float(np.square(end[n] - start[n]).sum()) for n in end))
    assert lengths[1] < 0.8 * lengths[0]


def test_repeated_round_is_equal_to_the_bit(tiny: Callable[..., BaseModel], examples: list[Example]) -> None:
    base, priors = tiny(), []
    for _ in range(2):
        with placed(base) as adapter:
            adapter.load(zero_tensors(adapter.layout))
            train_variational(base, adapter, examples)
            priors.append({**adapter.state(), **adapter.private_state()})
    assert all(np.array_equal(priors[0][name], priors[1][name]) for name in priors[0])
