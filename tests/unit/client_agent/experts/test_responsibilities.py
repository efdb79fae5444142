"""Responsibilities, fit, regret and rejection: the formulas, and defects of the reference."""

from __future__ import annotations

from math import exp, inf, nan

import pytest

from client_agent.experts.responsibilities import (
    ProbeLosses,
    differences,
    fit,
    regret,
    rejects,
    responsibilities,
    spread,
    uniform,
)

LIMITS = {"regret_above": 0.1}


def test_responsibilities_are_a_softmax_of_prior_and_loss() -> None:
    r = responsibilities({1: 1.0, 2: 2.0}, tau=0.5, prior={1: 0.2, 2: 0.8}, prior_weight=1.0)
    assert r[1] / r[2] == pytest.approx(0.25 * exp(2.0))
    assert sum(r.values()) == pytest.approx(1)


def test_temperature_is_the_spread_of_the_losses() -> None:
    losses = {1: 1.0, 2: 1.1, 5: 1.4}
    scaled = {expert: 10 * loss + 3 for expert, loss in losses.items()}
    assert responsibilities(losses) == pytest.approx(responsibilities(scaled))
    assert spread({1: 1.0, 2: 3.0}) == pytest.approx(1.0)


def test_equal_losses_give_equal_responsibilities() -> None:
    assert responsibilities({1: 0.7, 2: 0.7, 3: 0.7}) == pytest.approx(uniform((1, 2, 3)))


@pytest.mark.parametrize("broken", [inf, nan])
def test_expert_without_finite_loss_has_no_responsibility(broken: float) -> None:
    r = responsibilities({1: broken, 2: 1.0, 3: 1.5})
    assert r[1] == 0.0
    assert r[2] > r[3] > 0
    assert responsibilities({1: broken, 2: broken}) == pytest.approx(uniform((1, 2)))


def test_fit_and_regret_are_relative_and_clipped() -> None:
    losses = ProbeLosses(shared=2.0, specialists={1: 1.5, 2: 1.8})
    assert fit(losses) == pytest.approx(0.25)
    assert regret(losses, local=1.2) == pytest.approx(0.15)
    assert regret(losses, local=1.6) == 0.0
    assert regret(ProbeLosses(shared=1.0, specialists={1: 2.5}), local=0.1) == 1.0
    assert regret(ProbeLosses(shared=2.0, specialists={1: 6e-4}), local=3e-5) < 1e-3
    assert fit(ProbeLosses(shared=1.0, specialists={1: 1.2})) == 0.0
    assert fit(ProbeLosses(shared=1.0, specialists={})) == 0.0
    assert fit(ProbeLosses(shared=0.0, specialists={1: 0.0})) == 0.0


def test_equally_good_experts_are_not_rejected() -> None:
    """The reference rejected when no expert had r above .45, which two good ones never have (defect 4)."""
    losses = ProbeLosses(shared=2.0, specialists={1: 1.0, 2: 1.0, 3: 1.0})
    assert max(responsibilities(losses.specialists).values()) < 0.45
    assert not rejects(losses, 0.9, **LIMITS)


def test_client_rejects_a_bank_far_from_its_model() -> None:
    """Also of one that a few members could bend a little: it is better than the shared expert alone."""
    useless = ProbeLosses(shared=2.0, specialists={1: 1.98, 2: 2.3})
    assert rejects(useless, 1.0, **LIMITS)
    assert not rejects(useless, 1.95, **LIMITS)
    assert not rejects(useless, None, **LIMITS)
    assert rejects(ProbeLosses(shared=2.0, specialists={1: 1.5}), 1.0, **LIMITS)


def test_differences_are_shares_of_the_shared_loss() -> None:
    losses = ProbeLosses(shared=2.0, specialists={1: 0.5, 2: 0.6, 3: 0.1, 4: 9.0})
    assert differences(losses, 1) == pytest.approx({2: 0.05, 3: -0.2, 4: 1.0})
    gain = {expert: fit(ProbeLosses(2.0, {expert: loss})) for expert, loss in losses.specialists.items()}
    assert differences(losses, 1)[2] == pytest.approx(gain[1] - gain[2])


@pytest.mark.parametrize("broken", [inf, nan])
def test_experts_without_finite_loss_cost_the_whole(broken: float) -> None:
    losses = ProbeLosses(shared=2.0, specialists={1: 0.5, 2: broken})
    assert differences(losses, 1) == {2: 1.0}
    assert differences(losses, 2) == {1: 1.0}
    assert differences(ProbeLosses(0.0, {1: 0.0, 2: 0.0}), 1) == {2: 0.0}
