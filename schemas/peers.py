"""Claims about peers: what members of a federation can learn of each other's adapters under a plan. Pure."""

from __future__ import annotations

from schemas.messages.federations import FederationPlan

_MEAN = "Members are served the weighted mean of what members sent."
_SERVED = {
    "flora": "Members are served the weighted sum of the products B A of a round's members, in new factors, "
    "not the individual updates.",
    "fedex_lora": "Members are served the means of A and of B of a round's members, and the remainder of "
    "their mean product in new factors, not the individual updates.",
    "fedsa_lora": "Members are served the weighted mean of the A that members sent; B never leaves a member.",
    "ffa_lora": "Members are served the weighted mean of the B that members sent; A is the same for all.",
    "lora_fair": "Members are served the weighted mean of the A that members sent, and a B that is computed "
    "from all updates.",
    "fedmosaic": "Members are served mixtures of the updates of members relevant to them.",
    "fedavg": _MEAN,
    "ditto": _MEAN,
    "fedprox": _MEAN,
    "het_lora": _MEAN,
    "ca_pfl": _MEAN,
}
_OTHER = "Members are served what the strategy {} computes from the members' updates."

_ALONE = {
    "fedmosaic": "Where only one peer is relevant, a member can compute that peer's adapter from the mixture "
    "and its own",
    "flora": "With two members, each can compute the other's product",
    "fedex_lora": "With two members, each can compute what the other sent",
}
_ALONE_IN_A_MEAN = "With two members, each can compute what the other sent from the mean and its own"

_OVER_ROUNDS = (
    "Each member knows its own updates and may be shown the share of each member that it was served: a "
    "member that compares rounds, or colludes with others, can narrow down the update of a member that "
    "took part in only one of them."
)


_OUTPUTS = (
    "Each member sends what its model says on the federation's public texts, and is served a mixture of what "
    "the models of members like it say. privacy.min_voices holds at each place of a text; with 1 a place may "
    "be one member's own. No bound holds for what a member learns from the mixture."
)

_SUMMED = {
    "fed_vemoe": "Members are served one bank of experts, each changed by the weighted mean of the changes "
    "that the members who used it have learnt.",
    "fedsa_lora": "Members are served one model, changed by the weighted mean of the changes of A that the "
    "members of a sum have learnt; B never leaves a member.",
    "ffa_lora": "Members are served one model, changed by the weighted mean of the changes of B that the "
    "members of a sum have learnt; A is the same for all.",
}
_SUMMED_WHOLE = (
    "Members are served one model, changed by the weighted mean of the changes that the members of a sum "
    "have learnt."
)
_OVER_SUMS = (
    "Each member knows its own updates: a member that compares rounds, or colludes with others, can narrow "
    "down the update of a member that took part in only one of them."
)


def member_claims(plan: FederationPlan) -> list[str]:
    """Return what members can learn of each other's adapters, as sentences that hold in every round."""
    summed = plan.privacy.secure_sum
    if summed is not None:
        peers = summed.minimum - 1
        colluding = "the other one" if peers == 1 else f"the {peers} others together"
        return [
            _SUMMED.get(plan.strategy.name, _SUMMED_WHOLE),
            f"A sum has at least {summed.minimum} members (privacy.secure_sum.minimum): in the smallest, "
            f"{colluding} can compute what a member sent.",
            _OVER_SUMS,
        ]
    served = [_SERVED.get(plan.strategy.name, _OTHER.format(plan.strategy.name)), _voices(plan), _OVER_ROUNDS]
    return [*served, _OUTPUTS] if plan.strategy.options.get("distil") is not None else served


def serves_fewer_than(min_voices: int, plan: FederationPlan) -> bool:
    """Whether a plan allows that a client is served what fewer than `min_voices` others have sent."""
    summed = plan.privacy.secure_sum
    # All other members of a sum together can compute what one of them sent.
    return (plan.privacy.min_voices if summed is None else summed.minimum - 1) < min_voices


def _voices(plan: FederationPlan) -> str:
    """Return the minimum number of clients in a mixture, as text, and the behaviour below it."""
    least = plan.privacy.min_voices
    if least == 1:
        alone = _ALONE.get(plan.strategy.name, _ALONE_IN_A_MEAN)
        newcomer = (
            "; and a newcomer that guesses a member's signature is served that member's adapter before it "
            "has sent anything"
            if plan.strategy.name == "fedmosaic"
            else "; and a newcomer is served the current mixture before it has sent anything"
        )
        return f"A mixture may be one other member's alone (privacy.min_voices 1). {alone}{newcomer}."
    most = 1 - 1 / (2 * least)
    few = "none has" if least == 2 else f"no {least - 1} together have"
    return (
        f"A mixture is served only if it is made of {least} other members (privacy.min_voices), of which "
        f"{few} more than {most:.0%}; below that a member keeps its own adapter, and a "
        f"newcomer starts from nothing. Colluding members are counted one by one: {least - 1} of "
        "them can compute the remainder."
    )
