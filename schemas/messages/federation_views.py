"""A federation as shown to people."""

from __future__ import annotations

from typing import Literal

from schemas.messages.base import Strict, UtcTime
from schemas.messages.federations import FederationPlan

FederationState = Literal["open", "running", "paused", "finished"]


class RoundNumber(Strict):
    """The current round in short."""

    number: int
    state: str


class ClientCounts(Strict):
    """The number of clients of a federation, by state."""

    enrolled: int
    revoked: int


PackVerdict = Literal["passed", "failed", "untested"]


class PackStanding(Strict):
    """The verdict on a base model's alignment pack; `sharing` describes the effect on its clients."""

    base_model: str
    verdict: PackVerdict
    sharing: str


class Federation(Strict):
    """A federation as shown to people; `plan` has all defaults resolved, `alignment` one entry per pack."""

    id: str
    name: str
    state: FederationState
    plan: FederationPlan
    round: RoundNumber | None
    clients: ClientCounts
    claims: list[str]
    alignment: list[PackStanding]
    created_at: UtcTime


class FederationPage(Strict):
    """A page of federations; `next` is the cursor of the next page, null on the last."""

    items: list[Federation]
    next: str | None
