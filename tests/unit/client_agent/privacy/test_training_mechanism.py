"""The noise of private training: sufficient and tight for its budget, checked by another library."""

from __future__ import annotations

import pytest
from prv_accountant import PoissonSubsampledGaussianMechanism, PRVAccountant

from client_agent.privacy.accountant import epsilon_of_counted
from client_agent.privacy.budget import TooFewRecords
from client_agent.privacy.release import STEPS, Mechanism
from client_agent.privacy.training import sigma_of, training_mechanism
from schemas.messages.private_training import PrivateTrainingPlan
from schemas.messages.training import TrainingPlan

DELTA = 1e-5


def dp(**fields: float) -> PrivateTrainingPlan:
    return PrivateTrainingPlan.model_validate({"epsilon": 4.0, "steps": 100} | fields)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("noise", "sampled", "records", "steps"),
    [(0.8, 16, 1600, 400), (1.5, 64, 1000, 200), (4.0, 32, 64, 60)],
)
def test_training_epsilon_agrees_with_the_prv_accountant(
    noise: float, sampled: int, records: int, steps: int
) -> None:
    """Gopi, Lee, Wutschitz, "Numerical Composition of Differential Privacy" (NeurIPS 2021)."""
    epsilon = epsilon_of_counted([(Mechanism(sampled, records, noise, 1.0, 1), steps)], DELTA)
    reference = PRVAccountant(
        prvs=[PoissonSubsampledGaussianMechanism(sampled / records, noise)],
        max_self_compositions=[steps],
        eps_error=0.01,
        delta_error=DELTA / 1000,
    )
    least, estimate, most = reference.compute_epsilon(DELTA, [steps])
    assert least <= epsilon <= most * 1.01
    assert epsilon == pytest.approx(estimate, rel=0.02)


@pytest.mark.slow
def test_noise_for_a_training_budget_is_tight() -> None:
    plan = TrainingPlan(batch_size=8, accumulation=4, learning_rate=1e-3)
    mechanism = training_mechanism(640, 1000, plan, dp())
    assert (mechanism.sampled, mechanism.records, mechanism.clip, mechanism.dim) == (32, 640, 1.0, 1000)
    assert epsilon_of_counted([(mechanism, 100)], DELTA) <= 4.0
    less = Mechanism(32, 640, mechanism.noise_multiplier - 0.02, 1.0, 1000)
    assert epsilon_of_counted([(less, 100)], DELTA) > 4.0
    assert sigma_of(mechanism) >= mechanism.noise_multiplier * STEPS


@pytest.mark.slow
def test_step_samples_all_examples_below_batch_size() -> None:
    assert training_mechanism(20, 9, TrainingPlan(batch_size=64), dp()).sampled == 20


@pytest.mark.slow
def test_meaningless_delta_is_refused() -> None:
    with pytest.raises(TooFewRecords, match=r"delta 0\.01 protects none of 200 examples"):
        training_mechanism(200, 9, TrainingPlan(), dp(delta=1e-2))
    with pytest.raises(TooFewRecords, match=r"delta 1e-08 is too small for 1000000000 values and 100 steps"):
        training_mechanism(20, 10**9, TrainingPlan(), dp(delta=1e-8))
