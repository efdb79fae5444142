"""The claims of a federation that sums updates (docs/explanation/secure-sum.md). Pure."""

from __future__ import annotations

from schemas.messages.federations import FederationPlan
from schemas.messages.sum_plan import SecureSumPlan

OPERATOR_OF_SUMS = (
    "What clients send is confidential in transit, and the server operator sees sums of updates."
)
_IN_CLEAR = (
    "Updates are summed without masks (privacy.secure_sum.masking none): the server operator is trusted, and "
    "the coordinator sees every update."
)
_THIRD = "while fewer than a third of the members of each sum collude with it"
_UNBOUNDED = (
    "A member can add anything to a sum, without limit and without being named: no norm limit, clip or guard "
    "of the coordinator holds, and members are trusted not to poison a sum."
)
_NO_NOISE = (
    "Sums have no noise: they can reveal whether a text was trained on, and how they differ from round to "
    "round reveals more if their members differ."
)


def of_sums(plan: FederationPlan, summed: SecureSumPlan) -> list[str]:
    """Return what the coordinator sees of updates under a plan with `privacy.secure_sum`, and the limits."""
    return [_coordinator_sees(plan, summed), _UNBOUNDED, _NO_NOISE, _operator_knows(summed)]


def of_sum(count: int) -> list[str]:
    """Return the claim that follows from the number of clients in a round's sum, or ready for it."""
    return [
        f"{count} members are ready for the sum of this round or in it; all but one of them together can "
        "compute what the remaining one sent."
    ]


def _coordinator_sees(plan: FederationPlan, summed: SecureSumPlan) -> str:
    if summed.masking == "none":
        return _IN_CLEAR
    sums = f"The coordinator sees only sums over at least {summed.minimum} members"
    if plan.privacy.roster_policy == "pinned":
        return (
            f"{sums}, even if it lies, {_THIRD}. It chooses who is in a sum: of {summed.minimum} members, "
            f"{_colluders(summed.minimum)} at most may collude."
        )
    return (
        f"{sums} if it follows the protocol, {_THIRD}; under roster_policy {plan.privacy.roster_policy} it "
        "could invent members, and subtract what it sent for them."
    )


def _colluders(members: int) -> int:
    """Return the largest number that is less than a third of the members."""
    return (members - 1) // 3


def _operator_knows(summed: SecureSumPlan) -> str:
    scores = (
        "the mean losses of a sum's members" if summed.scores == "summed" else "the scores of each member"
    )
    return f"The operator sees who took part, when and with how many bytes, and {scores}."
