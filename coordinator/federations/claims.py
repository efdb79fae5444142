"""Say what a federation may honestly promise, and a round may honestly say of itself. Pure: settings and
counts in, sentences out.

Each sentence follows from the plan, which is fixed, and from what was counted; docs/security.md says what
stands behind it.
"""

from __future__ import annotations

from dataclasses import dataclass

from schemas.messages.federations import FederationPlan, RosterPolicy

_OPERATOR = (
    "The server operator is trusted; what clients send is confidential in transit and from other clients."
)
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
_SKETCHES = (
    "Signatures are clipped sketches of gradients without noise: they may tell the operator something of the "
    "texts behind them."
)
_IN_CLEAR = (
    "The operator sees adapters, scores, counts of examples and bytes, and who takes part when, as they are."
)


@dataclass(frozen=True, slots=True)
class Counted:
    """What was counted in a round: accepted updates, and how many of them came from bearer clients."""

    updates: int
    from_bearers: int


def of_federation(plan: FederationPlan) -> list[str]:
    """Say what may be claimed in every round under this plan."""
    return [
        _OPERATOR,
        _BEARER if plan.privacy.allow_bearer_clients else _SIGNED,
        _MEMBERS[plan.privacy.roster_policy],
        _SKETCHES,
        _IN_CLEAR,
    ]


def of_round(plan: FederationPlan, counted: Counted) -> list[str]:
    """Say what may be claimed of one round: what its federation may, and who was in fact behind it."""
    claims = of_federation(plan)
    if not counted.updates:
        return claims
    if counted.from_bearers:
        said = f"Of {counted.updates} updates, {counted.from_bearers} came with bearer credentials."
    else:
        said = f"Of {counted.updates} updates, all were signed with keys of their clients."
    return [*claims, said]
