"""A round that a worker aggregates under a lease."""

from __future__ import annotations

from dataclasses import dataclass

from coordinator.rounds.store import LeaseToken
from schemas.messages.federations import FederationPlan


@dataclass(frozen=True, slots=True)
class Claim:
    """A round that this worker aggregates until its lease runs out."""

    federation_id: str
    number: int
    round_id: int
    token: LeaseToken
    plan: FederationPlan
