"""Posterior of importance: a Gamma distribution per module and rank."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.distributions import Gamma, kl_divergence

from client_agent.adapters.variational.posterior import (
    START,
    Posterior,
    gamma_kl,
    importance,
    positive,
    raw_of,
)

sizes = st.floats(0.05, 60)


@given(a=sizes, b=sizes, prior_a=sizes, prior_b=sizes)
@settings(deadline=None)
def test_divergence_equals_that_of_torch(a: float, b: float, prior_a: float, prior_b: float) -> None:
    computed = gamma_kl(*(torch.tensor(x, dtype=torch.float64) for x in (a, b, prior_a, prior_b)))
    reference = kl_divergence(
        *(
            Gamma(torch.tensor(x, dtype=torch.float64), torch.tensor(y, dtype=torch.float64))
            for x, y in ((a, b), (prior_a, prior_b))
        )
    )
    assert float(computed) == pytest.approx(float(reference), rel=1e-6, abs=1e-9)


def test_divergence_of_equal_distributions_is_zero() -> None:
    same = torch.full((3, 8), 1.7)
    assert gamma_kl(same, same, same, same).abs().max() < 1e-6


def test_posterior_starts_and_restarts_at_given_values() -> None:
    gamma = torch.tensor([[[1.2, 2.0, 50.0]], [[3.0, 0.7, 0.1]]])
    posterior = Posterior(1, 3)
    assert posterior.gamma().detach() == pytest.approx(torch.full((2, 1, 3), START))
    posterior.restart(gamma)
    torch.testing.assert_close(posterior.gamma().detach(), gamma, rtol=1e-4, atol=1e-5)


def test_importance_is_the_mean_without_a_draw() -> None:
    gamma = torch.tensor([[[2.0, 3.0]], [[4.0, 1.0]]])
    torch.manual_seed(0)
    once = importance(gamma)
    torch.manual_seed(1)
    assert torch.equal(importance(gamma), once)
    assert once.tolist() == [[0.5, 3.0]]
    drawn = Gamma(gamma[0], gamma[1]).sample(torch.Size([20_000]))
    torch.testing.assert_close(drawn.mean(0), once, rtol=0.05, atol=0.05)


def test_posterior_shapes_and_rates_stay_in_bounds() -> None:
    gamma = positive(torch.tensor([-1e4, -10.0, 0.0, 1e4]).expand(2, 1, 4))
    assert (gamma[0] >= 1.1).all()
    assert (gamma[1] >= 0.01).all()
    assert torch.isfinite(importance(torch.stack([gamma[0], gamma[1].flip(1)]))).all()


def test_values_at_bounds_are_restored_unchanged() -> None:
    gamma = torch.tensor([[[1.1001, 2.0]], [[0.02, 1.0]]])
    torch.testing.assert_close(positive(raw_of(gamma)), gamma)
    assert torch.isfinite(raw_of(torch.tensor([[[0.1]], [[0.0]]]))).all()
