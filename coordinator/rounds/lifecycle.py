"""Decide the next state of a round. Pure: no clock, no database, no network."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal

from schemas.messages.federation_views import FederationState
from schemas.messages.rounds import ParticipationState, RoundState

ACCEPTING: frozenset[RoundState] = frozenset({"open", "collecting"})
"""States in which clients join and send updates."""

DELIVERED: frozenset[ParticipationState] = frozenset({"arrived", "ready"})
"""States of participations that count as an update: accepted, or ready to be summed."""

ENDED: frozenset[RoundState] = frozenset({"published", "abandoned"})
"""States that a round never leaves."""

TRANSITIONS: frozenset[tuple[RoundState, RoundState]] = frozenset(
    {
        ("open", "collecting"),
        ("open", "abandoned"),
        ("collecting", "closing"),
        ("collecting", "summing"),  # if the plan has a secure sum: its sessions follow, then closing
        ("collecting", "abandoned"),
        ("summing", "closing"),
        ("summing", "abandoned"),
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
SUM_FAILED = "secure-sum-failed"
SUM_OUT_OF_RANGE = "sum-out-of-range"

# A client that sent no update in so many consecutive rounds that it joined is not waited for.
_IDLE_ROUNDS = 2


class IllegalTransition(Exception):
    """A transition that is not in TRANSITIONS was requested: a programming error."""


@dataclass(frozen=True, slots=True)
class RoundFacts:
    """The facts on which a round's next state depends.

    Attributes:
        joined: clients that joined and are not revoked.
        expected: joined clients that are waited for, or have delivered: an update, or that they are ready.
        waiting: expected clients that have not delivered.
        delivered: clients that have, including those whose update was accepted before they were revoked.
        needed: number of clients that begins a round, and closes it before the deadline.
        quorum: number of updates that suffices at the deadline.
        collect_seconds: duration of collecting.
        deadline: end of collecting; None before it began.
        lease_expires_at: end of the aggregating worker's lease.
        sums: whether updates are summed in sessions before the round closes.
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
    sums: bool = False


@dataclass(frozen=True, slots=True)
class Step:
    """A transition that is due; for `aggregating` a worker claims the round with a lease."""

    to: RoundState
    deadline: datetime | None = None
    reason: str | None = None


def next_state(facts: RoundFacts, now: datetime) -> Step | None:
    """Return the transition that is due at `now`; None = none."""
    match facts.state:
        case "open":
            # Enough of the joined clients must be ones that the round would wait for, or it could never
            # reach its quorum.
            if facts.joined >= facts.needed and facts.expected >= facts.quorum:
                return Step("collecting", deadline=now + timedelta(seconds=facts.collect_seconds))
        case "collecting":
            return _collecting(facts, now)
        case "closing":
            return Step("aggregating")
        case "aggregating":
            if facts.lease_expires_at is None or now >= facts.lease_expires_at:
                return Step("aggregating")
        case "summing" | "published" | "abandoned":
            pass  # the sessions of a sum end `summing`
    return None


def is_waited_for(earlier_states: Sequence[str]) -> bool:
    """Whether a joining client keeps its round open until the deadline.

    A client without an update in the last two rounds that it joined does not: each round with it would last
    `collect_seconds`. Its update still counts while the round collects.

    Args:
        earlier_states: states of the client's last participations, newest first.
    """
    return tuple(earlier_states[:_IDLE_ROUNDS]) != ("joined",) * _IDLE_ROUNDS


def _collecting(facts: RoundFacts, now: datetime) -> Step | None:
    collected = Step("summing" if facts.sums else "closing")
    if facts.waiting == 0 and facts.delivered >= facts.needed:
        return collected
    if facts.deadline is None or now < facts.deadline:
        return None
    if facts.delivered >= facts.quorum:
        return collected
    return Step("abandoned", reason=TOO_FEW_UPDATES)


def after_round(
    state: FederationState, *, published: int, total: int
) -> Literal["finish", "open-next", "wait"]:
    """Return the next step after a round has ended or a federation was started."""
    if state == "finished":
        return "wait"
    if published >= total:
        return "finish"
    return "open-next" if state == "running" else "wait"


ClientAction = Literal["take-part", "wait", "finished"]


def client_action(
    federation: FederationState, current: RoundState | None, *, delivered: bool
) -> ClientAction:
    """Return a client's next action; `delivered` = its update was accepted, or it is ready for the sum."""
    if federation == "finished":
        return "finished"
    if current in ACCEPTING and not delivered:
        return "take-part"
    return "wait"


def retry_after(mean_seconds: float, draw: float) -> int:
    """Return 0.5 to 1.5 times the mean in whole seconds, at least 1; `draw` is uniform in [0, 1)."""
    # Spread, so that clients which were answered together do not return together.
    return max(1, round(mean_seconds * (0.5 + draw)))


@dataclass(frozen=True, slots=True)
class Participation:
    """One client's stored participation in one round, with the times that decide whether it was revoked."""

    state: ParticipationState
    revoked_at: datetime | None
    round_ended_at: datetime | None


def shown_state(participation: Participation) -> ParticipationState:
    """Return the stored state, or `revoked` if the client was revoked before the round ended."""
    if participation.revoked_at is None:
        return participation.state
    # After the end of a round its update has counted, and a revocation does not change that.
    if participation.round_ended_at is None or participation.revoked_at <= participation.round_ended_at:
        return "revoked"
    return participation.state
