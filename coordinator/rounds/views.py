"""Show rounds: all of them to people, to a client what `member_views` leaves of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import TypeVar

import numpy as np
from sqlalchemy.orm import Session

from coordinator.db.engine import database_time
from coordinator.db.tables.federations import RoundRow
from coordinator.errors import NotFound
from coordinator.federations import claims
from coordinator.federations.store import federation, plan_of
from coordinator.rounds import queries
from coordinator.rounds.lifecycle import Part, shown_state
from coordinator.rounds.store import state_of
from coordinator.strategies.base import WeightReduction
from coordinator.strategies.opening import open_plan
from schemas.messages.enrolment import Traffic
from schemas.messages.rounds import (
    HeldFor,
    Metrics,
    ParticipationState,
    ParticipationView,
    RelevanceView,
    RoundCounts,
    RoundSummary,
    RoundView,
    Scores,
    ScoreSummary,
)

Row = TypeVar("Row")

_HELD: tuple[tuple[WeightReduction, HeldFor], ...] = (
    (WeightReduction.LARGE, "large"),
    (WeightReduction.OPPOSED, "opposed"),
    (WeightReduction.COPIES, "copies"),
    (WeightReduction.CAPPED, "capped"),
    (WeightReduction.FEW, "few"),
)
_STATES: tuple[ParticipationState, ...] = ("joined", "arrived", "late", "rejected", "revoked")


def summary(session: Session, row: RoundRow, now: datetime) -> RoundSummary:
    """Show a round as it stands at `now`, without its clients."""
    tallies = queries.tallies(session, row.id)
    none = queries.Tally(0, 0, 0, 0)
    scores = queries.scores(session, row.id) if any(tally.scores for tally in tallies.values()) else []
    return RoundSummary(
        round=row.number,
        state=state_of(row),
        reason=row.reason,
        deadline=row.deadline,
        opened_at=row.opened_at,
        published_at=row.ended_at if row.state == "published" else None,
        counts=RoundCounts(
            joined=sum(tally.clients for tally in tallies.values()),
            arrived=tallies.get("arrived", none).clients,
            late=tallies.get("late", none).clients,
            rejected=tallies.get("rejected", none).clients,
        ),
        seconds=_seconds(row, now),
        bytes=Traffic(
            up=sum(tally.up for tally in tallies.values()), down=sum(tally.down for tally in tallies.values())
        ),
        scores=summarise([Scores.model_validate(one) for one in scores]),
    )


def view(session: Session, row: RoundRow) -> RoundView:
    """Show a round with all its clients."""
    return view_of(session, row, summary(session, row, database_time(session)), only=None)


def view_of(session: Session, row: RoundRow, shown: RoundSummary, *, only: str | None) -> RoundView:
    """Show a round, summed up already, with its clients or with one of them only."""
    last = queries.last_updates(session, row.federation_id, row.number)
    plan = plan_of(federation(session, row.federation_id))
    clients = [
        ParticipationView(
            client_id=part.client_id,
            name=part.name,
            state=shown_state(Part(_state(part.state), part.revoked_at, row.ended_at)),
            joined_at=part.joined_at,
            received_at=part.received_at,
            bytes=Traffic(up=part.up, down=part.down),
            norm=part.norm,
            epsilon=part.epsilon,
            examples_capped=part.examples is not None and part.examples > plan.limits.max_examples,
            staleness=row.number - last[part.client_id] if part.client_id in last else None,
            scores=Scores.model_validate(part.scores) if part.scores else None,
            reject_reason=part.reject_reason,
        )
        for part in queries.parts(session, row.id, only)
    ]
    return RoundView(
        **{name: getattr(shown, name) for name in RoundSummary.model_fields},
        clients=clients,
        claims=claims.of_round(open_plan(plan), queries.counted(session, row.id)),
    )


def relevance(session: Session, row: RoundRow, *, only: str | None = None) -> RelevanceView:
    """Show who listened to whom in a published round; with `only` that client's row.

    Raises:
        NotFound: the round has no relevance, or none of this client.
    """
    rows = queries.relevance(session, row.id, only)
    if not rows:
        raise NotFound
    return RelevanceView(
        round=row.number,
        clients=list(queries.compared(session, row.id)),
        rows=[one.client_id for one in rows],
        relevance=[_numbers(one.relevance) for one in rows],
        similarity=[_compared(one.similarity) for one in rows],
        entropy=[one.entropy for one in rows],
        served=_each(_numbers, [one.served for one in rows]),
        agreement=_each(_compared, [one.agreement for one in rows]),
        held=_each(_reasons, [one.held for one in rows]),
    )


def summarise(scores: Sequence[Scores]) -> ScoreSummary | None:
    """Give mean and worst of the clients' `after`; None before any."""
    after = [one.after for one in scores]
    if not after:
        return None
    return ScoreSummary(
        mean=Metrics(
            loss=_mean([one.loss for one in after]),
            perplexity=_mean([one.perplexity for one in after]),
            exact_match=_mean([one.exact_match for one in after]),
        ),
        worst=Metrics(
            loss=max(one.loss for one in after),
            perplexity=max(one.perplexity for one in after),
            exact_match=min(one.exact_match for one in after),
        ),
    )


def _mean(values: Sequence[float]) -> float:
    """Average numbers from 0 on, in parts of the largest one: however large they are, nothing overflows."""
    top = max(values)
    return top * (math.fsum(value / top for value in values) / len(values)) if top > 0 else 0.0


def _each(read: Callable[[bytes], Row], stored: Sequence[bytes | None]) -> list[Row] | None:
    """Read what the guard left, row by row; None for a round without one."""
    rows = [read(row) for row in stored if row is not None]
    return rows if len(rows) == len(stored) else None


def _numbers(stored: bytes) -> list[float]:
    return [float(value) for value in np.frombuffer(stored, "<f8")]


def _compared(stored: bytes) -> list[float | None]:
    return [None if math.isnan(value) else value for value in _numbers(stored)]


def _reasons(stored: bytes) -> list[list[HeldFor]]:
    return [[name for flag, name in _HELD if WeightReduction(one) & flag] for one in stored]


def _seconds(row: RoundRow, now: datetime) -> dict[str, float]:
    """Say how long each phase took, or has taken so far."""
    begins = {
        "open": row.opened_at,
        "collecting": row.collecting_at,
        "closing": row.closing_at,
        "aggregating": row.aggregating_at,
    }
    reached = [(phase, begin) for phase, begin in begins.items() if begin is not None]
    ends = [begin for _, begin in reached[1:]] + [row.ended_at or now]
    return {
        phase: max(0.0, (end - begin).total_seconds())
        for (phase, begin), end in zip(reached, ends, strict=True)
    }


def _state(stored: str) -> ParticipationState:
    return next(state for state in _STATES if state == stored)
