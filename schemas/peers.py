"""Describe what members of a federation may learn of each other's adapters under a plan.

The same sentences on both sides: agents print them, the coordinator claims them. Pure.
"""

from __future__ import annotations

from schemas.messages.federations import FederationPlan

_MEAN = "Members are served the weighted mean of what members sent."
_SERVED = {
    "flora": "Members are served the weighted sum of the products B A that a round's members sent, in "
    "factors of its own, not what each of them sent.",
    "fedex_lora": "Members are served the means of A and of B that a round's members sent, and the rest of "
    "their mean product in factors of its own, not what each of them sent.",
    "fedsa_lora": "Members are served the weighted mean of the A that members sent; B never leaves a member.",
    "ffa_lora": "Members are served the weighted mean of the B that members sent; A is the same for all.",
    "lora_fair": "Members are served the weighted mean of the A that members sent, and a B that is made of "
    "all that they sent.",
    "fedmosaic": "Members are served mixtures of what those relevant to them sent.",
    "fedavg": _MEAN,
    "het_lora": _MEAN,
    "ca_pfl": _MEAN,
}
_OTHER = "Members are served what the strategy {} makes of what members sent."

_ALONE = {
    "fedmosaic": "Where only one peer is relevant, a member is served its adapter as it is",
    "flora": "With two members, each can compute the other's product",
    "fedex_lora": "With two members, each can compute what the other sent",
}
_ALONE_IN_A_MEAN = "With two members, each can compute what the other sent from the mean and its own"

_OVER_ROUNDS = (
    "Each member knows what it sent and may be shown how much of whom it was served: one that compares "
    "rounds, or works together with others, can narrow down what a member sent that was there in only one "
    "of them."
)


def of_members(plan: FederationPlan) -> list[str]:
    """Return what members may learn of each other's adapters, in sentences that hold in every round."""
    return [_SERVED.get(plan.strategy.name, _OTHER.format(plan.strategy.name)), _voices(plan), _OVER_ROUNDS]


def fewer_than_asked(min_voices: int, plan: FederationPlan) -> bool:
    """Whether a plan serves mixtures of fewer members than `min_voices`."""
    return plan.privacy.min_voices < min_voices


def _voices(plan: FederationPlan) -> str:
    """Return of how many other members a mixture is made at least, and what happens below that."""
    least = plan.privacy.min_voices
    if least == 1:
        alone = _ALONE.get(plan.strategy.name, _ALONE_IN_A_MEAN)
        newcomer = (
            "; and so is a newcomer that guesses the signature of one, before it has sent anything"
            if plan.strategy.name == "fedmosaic"
            else "; and a newcomer is served what there is before it has sent anything"
        )
        return f"A mixture may be one other member's alone (privacy.min_voices 1). {alone}{newcomer}."
    most = 1 - 1 / (2 * least)
    few = "none has" if least == 2 else f"no {least - 1} together have"
    return (
        f"A mixture is served only if it is made of {least} other members (privacy.min_voices), of which "
        f"{few} more than {most:.0%}; below that a member keeps its own adapter, and a "
        f"newcomer starts from nothing. Members that work together are counted one by one: {least - 1} of "
        "them can compute what is left."
    )
