"""The claims of a federation that sums updates (docs/explanation/secure-sum.md). Pure."""

from __future__ import annotations

from schemas.messages.federations import FederationPlan
from schemas.messages.sum_plan import SecureSumPlan
from schemas.operator_claims import coordinator_sees
from schemas.privacy import training_guarantee

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


def summed_plan_claims(plan: FederationPlan, summed: SecureSumPlan, *, has_bank: bool) -> list[str]:
    """Return the claims about the coordinator's view of updates under `privacy.secure_sum`, and the limits.

    `has_bank` is whether members choose among the experts of a bank.
    """
    choices = [_choices_claim(summed)] if has_bank else []
    private = training_guarantee(plan)
    noise = enforced_by_agents(private) if private is not None else _NO_NOISE
    return [coordinator_sees(plan, summed), *choices, _UNBOUNDED, noise, _operator_claim(summed)]


def enforced_by_agents(guarantee: str) -> str:
    """Return the claim of a guarantee of differential privacy."""
    return (
        f"{guarantee[0].upper()}{guarantee[1:]}. Each agent enforces this for the releases of its own "
        "folder; the coordinator cannot verify it."
    )


def round_sum_claims(count: int) -> list[str]:
    """Return the claim that follows from the number of clients in a round's sum, or ready for it."""
    return [
        f"{count} members are ready for the sum of this round or in it; all but one of them together can "
        "compute what the remaining one sent."
    ]


def _choices_claim(summed: SecureSumPlan) -> str:
    if summed.masking == "none":
        return "The coordinator sees which experts each member uses."
    peers = "the other one" if summed.k_min == 2 else f"the {summed.k_min - 1} others"
    return (
        "The coordinator learns how many members use each expert, not which, and sums of what the users of "
        f"an expert have learnt, of at least {summed.k_min} (privacy.secure_sum.k_min): in the smallest, "
        f"{peers} can compute what a member sent. Members prove that they count themselves once at most, and "
        f"check the proofs of all: with k of them that count themselves falsely, the smallest sum is of "
        f"{summed.k_min} - k others, and {summed.k_min - 1} that lie together have the update of a lone user "
        "summed, which all members then see. Counts are exact, and members and the operator see them "
        "with the names of the counted members: where these differ from round to round, the counts can show "
        "which expert a newcomer uses."
    )


def _operator_claim(summed: SecureSumPlan) -> str:
    scores = (
        "the mean losses of a sum's members" if summed.scores == "summed" else "the scores of each member"
    )
    return f"The operator sees who took part, when and with how many bytes, and {scores}."
