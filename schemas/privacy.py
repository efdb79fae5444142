"""The differential-privacy guarantee of a plan's sketches and the spent budget, as text for both sides."""

from __future__ import annotations

import math

from schemas.messages.federations import SignaturePlan


def guarantee(plan: SignaturePlan) -> str | None:
    """Return the guarantee for a single record as text; None without differential privacy."""
    dp = plan.dp
    if dp is None:
        return None
    return (
        f"sketches: record-level ({dp.epsilon:g}, {dp.delta:g})-differential privacy against everybody, "
        "the coordinator included: the presence of any one record of a silo changes the probability of any "
        f"conclusion from all its sketches by a factor of at most {_factor(dp.epsilon)}, except with "
        f"probability {dp.delta:g}; not covered: the adapters, with which the coordinator is trusted, "
        "the number of examples of a silo, and its response times"
    )


def budget_status(plan: SignaturePlan, epsilon: float, releases: int | None = None) -> str:
    """Return the spent budget as text; `releases` is the number of published sketches, if available."""
    dp = plan.dp
    if dp is None:
        return "no privacy budget"
    remaining = "" if releases is None else f"; {max(0, (dp.releases or 0) - releases)} of {dp.releases} left"
    return f"epsilon {epsilon:.3g} of {dp.epsilon:g} spent at delta {dp.delta:g}{remaining}"


def _factor(epsilon: float) -> str:
    factor = math.exp(epsilon)
    return f"{factor:.2f}" if factor < 10 else f"{factor:.0f}"
