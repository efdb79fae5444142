"""Decide which state a round belongs in. Pure: no clock, no database, no network."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal

from schemas.messages.federations import FederationState
from schemas.messages.rounds import ParticipationState, RoundState

TAKING_PART: frozenset[RoundState] = frozenset({"open", "collecting"})
"""States in which clients join and deliver."""

ENDED: frozenset[RoundState] = frozenset({"published", "abandoned"})
"""States that a round never leaves."""

TRANSITIONS: frozenset[tuple[RoundState, RoundState]] = frozenset(
    {
        ("open", "collecting"),
        ("open", "abandoned"),
        ("collecting", "closing"),
        ("collecting", "abandoned"),
        ("closing", "aggregating"),
        ("closing", "abandoned"),
        ("aggregating", "aggregating"),  # another worker takes over when the lease has run out
        ("aggregating", "published"),
        ("aggregating", "abandoned"),
    }
)

TOO_FEW_UPDATES = "too-few-updates"
FEDERATION_FINISHED = "finished"
AGGREGATION_FAILED = "aggregation-failed"
PACK_ENDED = "pack-ended"

_IDLE_ROUNDS = 2
"""After how many rounds in which it joined and sent nothing nobody waits for a client."""


class IllegalTransition(Exception):
    """Somebody asked for a transition that is not in TRANSITIONS: a fault of ours."""


@dataclass(frozen=True, slots=True)
class RoundFacts:
    """What a round's next state depends on.

    Attributes:
        joined: clients that joined and are not revoked.
        expected: those of them that are waited for, or have delivered.
        waiting: those that are expected and have not delivered.
        delivered: accepted updates, those of clients revoked since included.
        needed: how many clients make a round begin, and close it early.
        quorum: how many updates are enough at the deadline.
        collect_seconds: how long updates are collected.
        deadline: when collecting ends; None before it began.
        lease_expires_at: until when an aggregating worker is trusted to be alive.
    """

    state: RoundState
    joined: int
    expected: int
    waiting: int
    delivered: int
    needed: int
    quorum: int
    collect_seconds: float
    deadline: datetime | None
    lease_expires_at: datetime | None


@dataclass(frozen=True, slots=True)
class Step:
    """A transition that is due; `aggregating` is taken by a worker that claims the round with a lease."""

    to: RoundState
    deadline: datetime | None = None
    reason: str | None = None


def next_state(facts: RoundFacts, now: datetime) -> Step | None:
    """Say which transition is due at `now`; None = none."""
    match facts.state:
        case "open":
            if facts.joined >= facts.needed and facts.expected >= facts.quorum:
                return Step("collecting", deadline=now + timedelta(seconds=facts.collect_seconds))
        case "collecting":
            return _collecting(facts, now)
        case "closing":
            return Step("aggregating")
        case "aggregating":
            if facts.lease_expires_at is None or now >= facts.lease_expires_at:
                return Step("aggregating")
        case "published" | "abandoned":
            pass
    return None


def is_waited_for(parts_before: Sequence[str]) -> bool:
    """Whether a client that joins holds its round open until the deadline, by its last parts in others.

    Whoever sent nothing in the last two rounds that it joined does not, until it delivers again: a member
    that only joins would cost everybody `collect_seconds` a round. It may deliver while the round lasts.
    """
    return tuple(parts_before[:_IDLE_ROUNDS]) != ("joined",) * _IDLE_ROUNDS


def _collecting(facts: RoundFacts, now: datetime) -> Step | None:
    """Close when everybody expected is in, or at the deadline with a quorum."""
    if facts.waiting == 0 and facts.delivered >= facts.needed:
        return Step("closing")
    if facts.deadline is None or now < facts.deadline:
        return None
    if facts.delivered >= facts.quorum:
        return Step("closing")
    return Step("abandoned", reason=TOO_FEW_UPDATES)


def after_round(
    state: FederationState, *, published: int, total: int
) -> Literal["finish", "open-next", "wait"]:
    """Say what follows a round that has ended, or an order to start."""
    if state == "finished":
        return "wait"
    if published >= total:
        return "finish"
    return "open-next" if state == "running" else "wait"


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
