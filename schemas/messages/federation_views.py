"""A federation as shown to people."""

from __future__ import annotations

from typing import Literal

from schemas.messages.base import Strict, UtcTime
from schemas.messages.federations import FederationPlan

FederationState = Literal["open", "running", "paused", "finished"]


class RoundNumber(Strict):
    """The current round in short."""

    number: int
    """The number of the round, from 1."""
    state: str
    """The state of the round."""


class ClientCounts(Strict):
    """The number of clients of a federation, by state."""

    enrolled: int
    """Clients that may take part."""
    revoked: int
    """Clients that were revoked."""


PackVerdict = Literal["passed", "failed", "untested"]


class PackStanding(Strict):
    """The verdict on a base model's alignment pack; `sharing` describes the effect on its clients."""

    base_model: str
    """The slug of the base model."""
    verdict: PackVerdict
    """The verdict of the transfer tests."""
    sharing: str
    """With whom the clients of this base model share."""


class Federation(Strict):
    """A federation as shown to people; `plan` has all defaults resolved, `alignment` one entry per pack."""

    id: str
    """The id of the federation."""
    name: str
    """The name of the federation."""
    state: FederationState
    """The state of the federation."""
    plan: FederationPlan
    """The plan with all defaults resolved."""
    round: RoundNumber | None
    """The current round; null before the first."""
    clients: ClientCounts
    """Clients by state."""
    claims: list[str]
    """Sentences about what the plan guarantees."""
    alignment: list[PackStanding]
    """One entry per alignment pack."""
    created_at: UtcTime
    """The time at which it was created."""


class FederationPage(Strict):
    """A page of federations; `next` is the cursor of the next page, null on the last."""

    items: list[Federation]
    """The federations."""
    next: str | None
    """The cursor of the next page, to be sent as `after`; null on the last."""
