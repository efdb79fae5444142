"""Say in words what a plan's differential privacy of signatures promises, and how much of it is spent.

The same sentences on both sides: agents print them, the coordinator shows them. Pure.
"""

from __future__ import annotations

import math

from schemas.messages.federations import SignaturePlan


def promise(plan: SignaturePlan) -> str | None:
    """Say what signatures promise about a single record; None without differential privacy."""
    dp = plan.dp
    if dp is None:
        return None
    return (
        f"signatures: record-level ({dp.epsilon:g}, {dp.delta:g})-differential privacy against everybody, "
        "the coordinator included: whether any one record of a silo is there changes how likely anything is "
        f"that can be concluded from all its signatures by a factor of {_factor(dp.epsilon)} at most, except "
        f"with probability {dp.delta:g}; not covered: the adapters, with which the coordinator is trusted, "
        "how many examples a silo has, and when it answers"
    )


def spent(plan: SignaturePlan, epsilon: float, releases: int | None = None) -> str:
    """Say how much of the budget a client has spent; `releases` are those it has made, if known."""
    dp = plan.dp
    if dp is None:
        return "no privacy budget"
    left = "" if releases is None else f"; {max(0, (dp.releases or 0) - releases)} of {dp.releases} left"
    return f"epsilon {epsilon:.3g} of {dp.epsilon:g} spent at delta {dp.delta:g}{left}"


def _factor(epsilon: float) -> str:
    factor = math.exp(epsilon)
    return f"{factor:.2f}" if factor < 10 else f"{factor:.0f}"
