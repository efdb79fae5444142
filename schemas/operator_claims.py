"""Claims about the view of updates of a coordinator that sums them under a plan. Pure."""

from __future__ import annotations

from schemas.messages.federations import FederationPlan
from schemas.messages.sum_plan import SecureSumPlan

_IN_CLEAR = (
    "Updates are summed without masks (privacy.secure_sum.masking none): the server operator is trusted, and "
    "the coordinator sees every update."
)
_THIRD = "while fewer than a third of the members of each session collude with it"


def coordinator_sees(plan: FederationPlan, summed: SecureSumPlan) -> str:
    """Return the claim about the coordinator's view of updates under a plan with `privacy.secure_sum`."""
    if summed.masking == "none":
        return _IN_CLEAR
    sums = f"The coordinator sees only sums over at least {summed.minimum} members"
    if plan.privacy.roster_policy == "pinned":
        return (
            f"{sums}, even if it lies, {_THIRD}; with k colluders it learns the sum of at least "
            f"{summed.minimum} - k other members, and no smaller one. It chooses who is in a session: of "
            f"{summed.minimum} members, {_colluders(summed.minimum)} at most may collude."
        )
    return (
        f"{sums} if it follows the protocol, {_THIRD}; under roster_policy {plan.privacy.roster_policy} it "
        "could invent members, and subtract what it sent for them."
    )


def _colluders(members: int) -> int:
    """Return the largest number that is less than a third of the members."""
    return (members - 1) // 3
