"""Say what a federation may honestly promise, and a round may honestly say of itself. Pure: settings and
counts in, sentences out.

Each sentence follows from the plan, which is fixed, and from what was counted; docs/security.md says what
stands behind it.
"""

from __future__ import annotations

from dataclasses import dataclass

from coordinator.strategies.capabilities import Caps
from coordinator.strategies.opening import OpenedPlan
from schemas.messages.federations import FederationPlan, RosterPolicy, SignatureKind
from schemas.peers import of_members
from schemas.privacy import promise

_OPERATOR = "The server operator is trusted; what clients send is confidential in transit."
_SIGNED = "Clients sign every request with keys that never leave them."
_BEARER = (
    "Clients may identify themselves with bearer credentials: who reads decrypted requests can act as one of "
    "these."
)
_MEMBERS: dict[RosterPolicy, str] = {
    "server": "Who the members are is what the coordinator says: it could invent some.",
    "tofu": "Each agent holds a member's name to the first key that it saw under it; a member that the "
    "coordinator invents is noticed only if it takes another's name.",
    "pinned": "An agent takes part only while all members have keys that people pinned in its silo: the "
    "coordinator cannot add one unnoticed.",
}
_SIGNATURES: dict[SignatureKind, str] = {
    "gradient": "Signatures are clipped sketches of gradients without noise: text can be read from them, by "
    "the operator.",
    "representation": "Signatures are sketches of what a client's adapted model makes of shared texts, "
    "without noise: the operator may learn from them what it was trained on.",
}
_UNGUARDED = (
    "A member's update counts with all its length (up to `limits.max_norm`) for whoever listens to it: "
    "members are trusted not to poison what they send."
)
_IN_CLEAR = (
    "The operator sees adapters, scores, counts of examples and bytes, and who takes part when, as they are."
)


@dataclass(frozen=True, slots=True)
class Counted:
    """What was counted in a round.

    Attributes:
        updates: how many were accepted.
        from_bearers: how many of these came from bearer clients.
        private: how many came with signatures that say what they have cost.
        spent: the most that one of these has cost its client so far; None without any.
    """

    updates: int
    from_bearers: int
    private: int = 0
    spent: float | None = None


def of_federation(opened: OpenedPlan) -> list[str]:
    """Return the claims that hold in every round under this plan."""
    plan = opened.plan
    return [
        _OPERATOR,
        *of_members(plan),
        _BEARER if plan.privacy.allow_bearer_clients else _SIGNED,
        _MEMBERS[plan.privacy.roster_policy],
        _private(plan) or _SIGNATURES[plan.signature.kind],
        _guarded(opened.strategy.caps),
        _IN_CLEAR,
    ]


def of_round(opened: OpenedPlan, counted: Counted) -> list[str]:
    """Say what may be claimed of one round: what its federation may, and who was in fact behind it."""
    plan = opened.plan
    claims = of_federation(opened)
    if not counted.updates:
        return claims
    claims += _voices(plan.privacy.min_voices, counted.updates)
    if counted.from_bearers:
        who = f"Of {counted.updates} updates, {counted.from_bearers} came with bearer credentials."
    else:
        who = f"Of {counted.updates} updates, all were signed with keys of their clients."
    if plan.signature.dp is None:
        return [*claims, who]
    spent = f", at most epsilon {counted.spent:.3g} so far" if counted.spent is not None else ""
    return [
        *claims,
        who,
        f"Of {counted.updates} updates, {counted.private} say what their client's signatures have "
        f"cost{spent}.",
    ]


def _voices(least: int, updates: int) -> list[str]:
    """Return what so few updates mean for those who sent them."""
    others = updates - 1
    if least == 1:
        few = (
            f"With {updates} updates, what a member is served of this round may be one other member's alone."
        )
        return [few] if others <= 1 else []
    lacking = (
        f"With {updates} updates, whoever sent one has {others} others in this round: fewer than the "
        f"{least} that a mixture is made of; it keeps its own adapter unless earlier updates count too."
    )
    return [lacking] if others < least else []


def _private(plan: FederationPlan) -> str | None:
    """Say what signatures promise about a record, if anything."""
    said = promise(plan.signature)
    if said is None:
        return None
    return (
        f"{said[0].upper()}{said[1:]}. Each agent keeps to this by itself, for all that its folder has "
        "released: that others do is their word."
    )


def _guarded(caps: Caps | None) -> str:
    """Say how far others can move a client (docs/poisoning.md, "The bound")."""
    if caps is None:
        return _UNGUARDED
    share = "0.2 f" if caps.strict else "max(0.2, 0.7 / n) f"
    heard = "" if caps.strict else " where it hears n independent voices"
    return (
        "Whatever f other members send, what they contribute to what an established client goes on from is "
        f"at most min({share}, 0.7) of the length of its own update{heard}. Not bounded: the weight that "
        "they take from honest members by being like them, and what newcomers are given."
    )
