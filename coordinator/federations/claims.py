"""Build the claims of a federation and of a round: sentences that follow from its plan and from counts
(docs/explanation/security.md).
"""

from __future__ import annotations

from dataclasses import dataclass

from coordinator.errors import StrategyUnavailable
from coordinator.federations.sum_claims import (
    OPERATOR_OF_SUMS,
    enforced_by_agents,
    round_sum_claims,
    summed_plan_claims,
)
from coordinator.strategies.capabilities import Caps
from coordinator.strategies.opening import OpenedPlan, open_plan
from schemas.messages.federations import FederationPlan, RosterPolicy
from schemas.peers import member_claims
from schemas.privacy import guarantee, training_guarantee

_OPERATOR = "The server operator is trusted; what clients send is confidential in transit."
_SIGNED = "Clients sign every request with keys that never leave them."
_BEARER = (
    "Clients may authenticate with bearer credentials: anyone who reads decrypted requests can impersonate "
    "them."
)
_MEMBERS: dict[RosterPolicy, str] = {
    "server": "The coordinator decides the list of members: it could add members that do not exist.",
    "tofu": "Each agent pins the first key that it sees under a member's name; a member that the coordinator "
    "invents is detected only if it reuses an existing name.",
    "pinned": "An agent takes part only while people in its silo have pinned the keys of all members: the "
    "coordinator cannot add a member undetected.",
}
_SIGNATURES = (
    "Signatures are clipped sketches of gradients without noise: the operator can reconstruct text from "
    "them. `signature.dp` adds noise, which grows with the number of releases, by default that of the "
    "rounds: with an epsilon of 8 and six releases, silos of 32 examples hardly noticed it."
)
_UNGUARDED = (
    "A member's update counts at its full norm (up to `limits.max_norm`) for every client that listens to "
    "it: members are trusted not to poison their updates."
)
_IN_CLEAR = (
    "The operator sees adapters, scores, counts of examples and bytes, and participation times in the clear."
)
_OUTPUTS = (
    "The operator sees what each member's model says on the federation's public texts: the eight likeliest "
    "bytes at each place."
)

_NOT_INSTALLED = (
    "The strategy {} is not installed at the coordinator any more, or its package was changed: nothing is "
    "claimed, and rounds wait until it is back."
)


@dataclass(frozen=True, slots=True)
class UpdateCounts:
    """Counts of the updates of a round.

    Attributes:
        updates: number of accepted updates; of clients in the round's sum, or ready for it.
        from_bearers: number of accepted updates from bearer clients.
        private: number of updates that report the privacy cost of their sketches.
        spent: largest reported cost (epsilon) of a client so far; None without a report.
    """

    updates: int
    from_bearers: int
    private: int = 0
    spent: float | None = None


def stored_plan_claims(plan: FederationPlan, counted: UpdateCounts | None = None) -> list[str]:
    """Return the claims of a stored plan, or of one of its rounds; its strategy may have been uninstalled."""
    try:
        opened = open_plan(plan)
    # What holds under a plan depends on its strategy, so that nothing is claimed without it.
    except StrategyUnavailable:
        return [_NOT_INSTALLED.format(plan.strategy.name)]
    return federation_claims(opened) if counted is None else round_claims(opened, counted)


def federation_claims(opened: OpenedPlan) -> list[str]:
    """Return the claims that hold in every round under this plan.

    First come what the operator can learn, what another member can learn, and what a member can do to the
    models of others.
    """
    plan = opened.plan
    summed = plan.privacy.secure_sum
    member_view, mixture_size, *member_rest = member_claims(plan)
    if summed is not None:
        coordinator_view, *choices, influence, noise, operator_view = summed_plan_claims(
            plan, summed, has_bank=opened.strategy.bank is not None
        )
        return [
            coordinator_view,
            mixture_size,
            influence,
            OPERATOR_OF_SUMS if summed.masking == "pairwise" else _OPERATOR,
            member_view,
            *member_rest,
            _SIGNED,
            _MEMBERS[plan.privacy.roster_policy],
            *choices,
            noise,
            operator_view,
        ]
    return [
        _private(plan) or _SIGNATURES,
        mixture_size,
        _guarded(opened.strategy.caps),
        _OPERATOR,
        member_view,
        *member_rest,
        _BEARER if plan.privacy.allow_bearer_clients else _SIGNED,
        _MEMBERS[plan.privacy.roster_policy],
        *_private_training(plan),
        *([_OUTPUTS] if opened.options.distilled_texts is not None else []),
        _IN_CLEAR,
    ]


def round_claims(opened: OpenedPlan, counted: UpdateCounts) -> list[str]:
    """Return the claims of a federation with those that follow from the updates of one round."""
    plan = opened.plan
    claims = federation_claims(opened)
    # A round without updates reveals nothing yet.
    if not counted.updates:
        return claims
    if plan.privacy.secure_sum is not None:
        return [*claims, *round_sum_claims(counted.updates)]
    claims += _voices(plan.privacy.min_voices, counted.updates)
    return [*claims, _senders(counted), *([_costs(counted)] if plan.signature.dp is not None else [])]


def _senders(counted: UpdateCounts) -> str:
    signed, bearers = counted.updates - counted.from_bearers, counted.from_bearers
    if counted.updates == 1:
        origin = "was signed with its client's key" if signed else "came with a bearer credential"
        return f"The only update {origin}."
    if not bearers:
        return f"Of {counted.updates} updates, all were signed with the keys of their clients."
    credentials = "a bearer credential" if bearers == 1 else "bearer credentials"
    return f"Of {counted.updates} updates, {bearers} came with {credentials}."


def _costs(counted: UpdateCounts) -> str:
    """Return how many updates report the privacy cost of their sketches, and the largest one."""
    spent = f", at most epsilon {counted.spent:.3g} so far" if counted.spent is not None else ""
    reporting = counted.private
    if counted.updates == 1:
        start = "The only update reports" if reporting else "The only update does not report"
    else:
        verb = "report" if reporting > 1 else "reports"
        start = f"Of {counted.updates} updates, {reporting or 'none'} {verb}"
    sketches = "their clients' sketches" if reporting > 1 else "its client's sketches"
    return f"{start} the privacy cost of {sketches}{spent}."


def _voices(least: int, updates: int) -> list[str]:
    peers = updates - 1
    begin = "With 1 update" if updates == 1 else f"With {updates} updates"
    if least == 1:
        warning = f"{begin}, weights that a member is served may be one other member's alone."
        return [warning] if peers <= 1 else []
    shortage = (
        f"{begin}, each sender has {_peers(peers)} in this round, fewer than the {least} that a "
        "mixture needs; it keeps its own adapter unless earlier updates count too."
    )
    return [shortage] if peers < least else []


def _peers(count: int) -> str:
    return {0: "no peer", 1: "1 peer"}.get(count, f"{count} peers")


def _private(plan: FederationPlan) -> str | None:
    sentence = guarantee(plan.signature, plan.privacy.training)
    return enforced_by_agents(sentence) if sentence is not None else None


def _private_training(plan: FederationPlan) -> list[str]:
    sentence = training_guarantee(plan)
    return [enforced_by_agents(sentence)] if sentence is not None else []


def _guarded(caps: Caps | None) -> str:
    """Return the bound on what other members contribute (docs/explanation/poisoning.md, "The bound")."""
    if caps is None:
        return _UNGUARDED
    exception = (
        ""
        if caps.strict
        else " (35 % if fewer than four others have most of the weight, 70 % if it is the only one)"
    )
    return (
        "Another member contributes to an established client's weights at most a fifth of the length of that "
        f"client's own update{exception}, and all others together at most 70 %. Not bounded: the weight that "
        "they take from honest members by resembling them, and the weights of newcomers."
    )
