"""The differential-privacy guarantees of a plan and the spent budgets, as text for both sides."""

from __future__ import annotations

import math

from schemas.messages.federations import FederationPlan
from schemas.messages.private_training import PrivateTrainingPlan
from schemas.messages.sketches import SignatureDpPlan, SignaturePlan

_BATCHED = (
    "; assumed (privacy.training.gradients batched): on a silo's machine the other examples of a batch do "
    "not change the bits of an example's gradient, which its agent tests before each round and cannot prove"
)


def guarantee(plan: SignaturePlan, training: PrivateTrainingPlan | None = None) -> str | None:
    """Return the guarantee of sketches for a single record as text; None without differential privacy.

    Args:
        training: the budget of private training, if there is one, beside which adapters are covered too.
    """
    dp = plan.dp
    if dp is None:
        return None
    adapters = "" if training is not None else "the adapters, with which the coordinator is trusted, "
    return (
        f"sketches: {_record_level('record', 'sketches', dp)}; not covered: {adapters}"
        "the number of examples of a silo, and its response times"
    )


def training_guarantee(plan: FederationPlan) -> str | None:
    """Return the guarantee of updates for a training example as text; None without private training."""
    training, sketches = plan.privacy.training, plan.signature.dp
    if training is None:
        return None
    together = ""
    if sketches is not None:
        epsilon, delta = training.epsilon + sketches.epsilon, training.delta + sketches.delta
        together = f"; updates and sketches together: ({epsilon:g}, {delta:g})"
    assumed = _BATCHED if training.gradients == "batched" else ""
    return (
        f"updates: {_record_level('training example', 'updates', training)}{together}{assumed}; not covered: "
        "the scores, which are of held-out examples, the number of examples of a silo, and its response times"
    )


def budget_status(
    plan: SignaturePlan, epsilon: float, releases: int | None = None, delta: float | None = None
) -> str:
    """Return the spent budget as text; `releases` is the number of published sketches, if available.

    Args:
        delta: the delta of `epsilon`; None = the plan's.
    """
    dp = plan.dp
    if dp is None:
        return "no privacy budget"
    remaining = "" if releases is None else f"; {max(0, (dp.releases or 0) - releases)} of {dp.releases} left"
    return f"{_spent(dp, epsilon, delta)}{remaining}"


def training_status(training: PrivateTrainingPlan, epsilon: float, delta: float | None = None) -> str:
    """Return the spent budget of training as text; `delta` is that of `epsilon`, None = the plan's."""
    return _spent(training, epsilon, delta)


def _spent(dp: SignatureDpPlan | PrivateTrainingPlan, epsilon: float, delta: float | None) -> str:
    if delta is None or delta == dp.delta:
        return f"epsilon {epsilon:.3g} of {dp.epsilon:g} spent at delta {dp.delta:g}"
    return (
        f"epsilon {epsilon:.3g} spent at delta {delta:g}, the smallest of this silo's plans; this plan "
        f"allows {dp.epsilon:g} at delta {dp.delta:g}"
    )


def _record_level(unit: str, sent: str, dp: SignatureDpPlan | PrivateTrainingPlan) -> str:
    return (
        f"record-level ({dp.epsilon:g}, {dp.delta:g})-differential privacy against everybody, the "
        f"coordinator included: the presence of any one {unit} of a silo changes the probability of any "
        f"conclusion from all its {sent} by a factor of at most {_factor(dp.epsilon)}, except with "
        f"probability {dp.delta:g}"
    )


def _factor(epsilon: float) -> str:
    factor = math.exp(epsilon)
    return f"{factor:.2f}" if factor < 10 else f"{factor:.0f}"
