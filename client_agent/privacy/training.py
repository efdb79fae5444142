"""The mechanism of differentially private training: its sample, its noise, and what they promise."""

from __future__ import annotations

import math

from client_agent.privacy.accountant import GRID_SHARE, noise_for
from client_agent.privacy.budget import TooFewRecords
from client_agent.privacy.release import STEPS, Mechanism
from client_agent.privacy.step_noise import LARGEST
from schemas.messages.private_training import PrivateTrainingPlan
from schemas.messages.training import TrainingPlan

_DISTANCE = 0.05
"""Of a discrete Gaussian from a rounded one, in total variation: at most .05 / sigma^2 per value and step.

The relative difference of both is |x^2 - 1| / (24 sigma^2) at x standard deviations, and half of its mean is
.02 / sigma^2.
"""


def training_mechanism(records: int, dim: int, plan: TrainingPlan, dp: PrivateTrainingPlan) -> Mechanism:
    """Return the mechanism of one step: m of `records` examples in expectation, and its noise.

    m is the plan's `batch_size` times `accumulation`, and all examples if there are fewer. The noise is the
    least at which `dp.steps` steps cost `dp.epsilon` (Abadi et al. 2016, arXiv 1607.00133, algorithm 1, with
    the sum over the sample divided by the expected m).

    Args:
        records: the number of different training examples.
        dim: the number of trained values.

    Raises:
        TooFewRecords: there are so many examples that delta protects none of them.
        ValueError: `dp.steps` is null, which a `FederationPlan` replaces by a number.
    """
    if dp.steps is None:
        raise ValueError("privacy.training.steps is not resolved")
    if dp.delta * records >= 1:
        raise TooFewRecords(
            f"delta {dp.delta:g} protects none of {records} examples: one may be revealed completely. "
            f"Ask the operator for a plan with a privacy.training.delta below {1 / records:.1g}"
        )
    # The expected number, and public: the actual size of a sample would reveal something of the records.
    sampled = min(plan.batch_size * plan.accumulation, records)
    noise = noise_for(sampled, records, dp.steps, dp.epsilon, dp.delta)
    mechanism = Mechanism(sampled, records, noise, dp.clip, dim)
    _require_fine(mechanism, dp)
    return mechanism


def sigma_of(mechanism: Mechanism) -> int:
    """Return the standard deviation of the noise in steps of clip / 2^30, rounded up."""
    return math.ceil(mechanism.noise_multiplier * STEPS)


def _require_fine(mechanism: Mechanism, dp: PrivateTrainingPlan) -> None:
    """Check that the grid is so fine that the share of delta that is kept for it suffices.

    Raises:
        TooFewRecords: delta is too small for so many values and steps, or the noise is too large.
    """
    sigma = sigma_of(mechanism)
    if sigma > LARGEST:
        raise TooFewRecords(
            f"epsilon {dp.epsilon:g} needs noise of {mechanism.noise_multiplier:g} clips, in which "
            "no update is visible. Ask the operator for a plan with a larger privacy.training.epsilon"
        )
    # Distances add up over values and steps.
    distance = _DISTANCE / sigma**2 * mechanism.dim * (dp.steps or 0)
    if distance > GRID_SHARE * dp.delta:
        raise TooFewRecords(
            f"delta {dp.delta:g} is too small for {mechanism.dim} values and {dp.steps} steps. Ask "
            f"the operator for a plan with a privacy.training.delta of {distance / GRID_SHARE:.1g} or more"
        )
