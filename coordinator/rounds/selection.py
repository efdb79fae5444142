"""Decide what a client is told to do, and how its part in a round is called. Pure: facts in, words out."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from coordinator.rounds.lifecycle import TAKING_PART
from schemas.messages.federations import FederationState
from schemas.messages.rounds import ParticipationState, RoundState

Advice = Literal["take-part", "wait", "finished"]


def advice(federation: FederationState, current: RoundState | None, *, delivered: bool) -> Advice:
    """Say what a client has to do: `delivered` = its update of the current round is in."""
    if federation == "finished":
        return "finished"
    if current in TAKING_PART and not delivered:
        return "take-part"
    return "wait"


def retry_after(mean_seconds: float, draw: float) -> int:
    """Spread clients that wait: 0.5 to 1.5 times the mean, in whole seconds; `draw` is uniform in [0, 1)."""
    return max(1, round(mean_seconds * (0.5 + draw)))


@dataclass(frozen=True, slots=True)
class Part:
    """One client's part in one round, as it is stored."""

    state: ParticipationState
    revoked_at: datetime | None
    round_ended_at: datetime | None


def shown_state(part: Part) -> ParticipationState:
    """Call a client revoked in the rounds that had not ended when it was revoked."""
    if part.revoked_at is None:
        return part.state
    if part.round_ended_at is None or part.revoked_at <= part.round_ended_at:
        return "revoked"
    return part.state
