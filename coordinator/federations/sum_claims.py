"""The claims of a federation that sums updates (docs/explanation/secure-sum.md). Pure."""

from __future__ import annotations

from schemas.messages.federations import FederationPlan
from schemas.messages.sum_plan import SecureSumPlan
from schemas.operator_claims import coordinator_sees

OPERATOR_OF_SUMS = (
    "What clients send is confidential in transit, and the server operator sees sums of updates."
)
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
    return [coordinator_sees(plan, summed), _UNBOUNDED, _NO_NOISE, _operator_knows(summed)]


def of_sum(count: int) -> list[str]:
    """Return the claim that follows from the number of clients in a round's sum, or ready for it."""
    return [
        f"{count} members are ready for the sum of this round or in it; all but one of them together can "
        "compute what the remaining one sent."
    ]


def _operator_knows(summed: SecureSumPlan) -> str:
    scores = (
        "the mean losses of a sum's members" if summed.scores == "summed" else "the scores of each member"
    )
    return f"The operator sees who took part, when and with how many bytes, and {scores}."
