"""Build the views of rounds for people. `member_views` restricts them for clients."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Any, TypeVar, get_args

import numpy as np
from sqlalchemy.orm import Session

from coordinator.db.engine import database_time
from coordinator.db.tables.federations import RoundRow
from coordinator.errors import NotFound
from coordinator.federations import claims
from coordinator.federations.store import federation, plan_of
from coordinator.rounds import queries, sum_views, update_counts
from coordinator.rounds.lifecycle import ACCEPTING, DELIVERED, Participation, shown_state
from coordinator.rounds.progress_reports import progress_of
from coordinator.rounds.sampling import draw
from coordinator.rounds.store import state_of
from coordinator.strategies.base import WeightReduction
from schemas.maths.adapter import factor_of
from schemas.messages.enrolment import Traffic
from schemas.messages.federations import FederationPlan
from schemas.messages.rounds import (
    HeldFor,
    ParticipationState,
    ParticipationView,
    RelevanceView,
    RoundCounts,
    RoundSummary,
    RoundView,
    SampleView,
)
from schemas.messages.scores import (
    LOSS,
    LOWER_IS_BETTER,
    MOST_SCORES,
    PERPLEXITY,
    Score,
    Scores,
    ScoreSummary,
)

Row = TypeVar("Row")

_HELD_NAMES: tuple[tuple[WeightReduction, HeldFor], ...] = (
    (WeightReduction.LARGE, "large"),
    (WeightReduction.OPPOSED, "opposed"),
    (WeightReduction.COPIES, "copies"),
    (WeightReduction.CAPPED, "capped"),
    (WeightReduction.FEW, "few"),
)
_STATES: tuple[ParticipationState, ...] = get_args(ParticipationState)


def summary(session: Session, row: RoundRow, now: datetime) -> RoundSummary:
    tallies = queries.tallies(session, row.id)
    no_clients = queries.Tally(0, 0, 0, 0)
    scores = queries.scores(session, row.id) if any(tally.scores for tally in tallies.values()) else []
    losses = sum_views.mean_losses(session, row, tallies.get("arrived", no_clients).clients)
    return RoundSummary(
        round=row.number,
        state=state_of(row),
        reason=row.reason,
        deadline=row.deadline,
        opened_at=row.opened_at,
        published_at=row.ended_at if row.state == "published" else None,
        counts=RoundCounts(
            joined=sum(tally.clients for tally in tallies.values()),
            arrived=sum(tallies.get(state, no_clients).clients for state in DELIVERED),
            late=tallies.get("late", no_clients).clients,
            dropped=tallies.get("dropped", no_clients).clients,
            rejected=tallies.get("rejected", no_clients).clients,
        ),
        seconds=_seconds(row, now),
        bytes=Traffic(
            up=sum(tally.up for tally in tallies.values()), down=sum(tally.down for tally in tallies.values())
        ),
        scores=(
            summarise([Scores.model_validate(stored).personal for stored in scores])
            if losses is None
            else sum_views.summary_of(losses)
        ),
        advice=_advice(session, row) if row.state == "open" else None,
    )


def _advice(session: Session, row: RoundRow) -> str | None:
    """Return what an open round lacks that no member can bring: other members."""
    needed = plan_of(federation(session, row.federation_id)).rounds.min_clients
    return members_advice(queries.members(session, row.federation_id), needed)


def members_advice(members: int, needed: int) -> str | None:
    """Return the advice for a federation of so many clients; None if they are enough for a round."""
    if members >= needed:
        return None
    return (
        f"{members} of {needed} required clients {'is a member' if members == 1 else 'are members'}; enrol "
        "another client, or finish this federation and create one with a smaller rounds.min_clients"
    )


def view(session: Session, row: RoundRow) -> RoundView:
    return view_of(session, row, summary(session, row, database_time(session)), only=None)


def view_of(session: Session, row: RoundRow, shown: RoundSummary, *, only: str | None) -> RoundView:
    """Return the view of a summarised round with all its clients, or with the client `only`."""
    plan = plan_of(federation(session, row.federation_id))
    if plan.privacy.secure_sum is None:
        last = update_counts.last_updates(session, row.federation_id, row.number)
        updates, summed = update_counts.count_updates(session, row.id), None
    else:
        last = update_counts.last_summed(session, row.federation_id, row.number)
        updates = update_counts.count_summed(session, row.id)
        now = database_time(session)
        summed = sum_views.sum_view(session, row, now, for_client=only is not None)
    clients = [
        ParticipationView(
            client_id=client.client_id,
            name=client.name,
            state=shown_state(
                Participation(participation_state(client.state), client.revoked_at, row.ended_at)
            ),
            joined_at=client.joined_at,
            received_at=client.received_at,
            bytes=Traffic(up=client.up, down=client.down),
            norm=client.norm,
            epsilon=client.epsilon,
            training_epsilon=client.training_epsilon,
            examples_capped=client.examples is not None and client.examples > plan.limits.max_examples,
            rank=_rank(client.tensor),
            staleness=row.number - last[client.client_id] if client.client_id in last else None,
            scores=Scores.model_validate(client.scores) if client.scores else None,
            reject_reason=client.reject_reason,
            progress=progress_of(client.report, client.reported_at, client.state, row.state),
        )
        for client in queries.participations(session, row.id, only)
    ]
    return RoundView(
        **{name: getattr(shown, name) for name in RoundSummary.model_fields},
        clients=clients,
        claims=claims.stored_plan_claims(plan, updates),
        secure_sum=summed,
        sample=_sample(session, row, plan, clients, only),
    )


def _rank(tensor: Sequence[Any] | None) -> int | None:
    """Return the rank of an update whose first tensor is `A` (r, d_in); all its modules have one rank."""
    if tensor is None:
        return None
    name, shape = tensor
    return int(shape[0]) if factor_of(name) == "A" else None


def _sample(
    session: Session,
    row: RoundRow,
    plan: FederationPlan,
    clients: Sequence[ParticipationView],
    only: str | None,
) -> SampleView | None:
    """Return the drawn clients; while a round accepts clients, also those that have not joined yet."""
    if plan.rounds.sample is None:
        return None
    if row.state not in ACCEPTING:
        return SampleView(places=None, drawn=sorted(client.name for client in clients))
    result = draw(session, row.federation_id, row.id, row.number, plan, database_time(session))
    named = zip(result.drawn, result.names, strict=True)
    return SampleView(
        places=result.places, drawn=sorted(name for client, name in named if only in (None, client))
    )


def relevance(session: Session, row: RoundRow, *, only: str | None = None) -> RelevanceView:
    """Return the relevance matrix of a published round, or the row of the client `only`.

    Raises:
        NotFound: the round has no relevance, or none of this client.
    """
    rows = queries.relevance(session, row.id, only)
    if not rows:
        raise NotFound
    columns = list(queries.relevance_columns(session, row.id))
    return RelevanceView(
        round=row.number,
        clients=columns,
        rows=[client.client_id for client in rows],
        relevance=[_numbers(client.relevance) for client in rows],
        similarity=[_numbers_or_none(client.similarity) for client in rows],
        entropy=[client.entropy for client in rows],
        served=_guard_rows(_numbers, [client.served for client in rows]),
        agreement=_guard_rows(_numbers_or_none, [client.agreement for client in rows]),
        changes=_guard_rows(partial(_cosines, len(columns)), [client.changes for client in rows]),
        held=_guard_rows(_reasons, [client.held for client in rows]),
    )


def summarise(scores: Sequence[Mapping[str, Score]]) -> ScoreSummary | None:
    """Return mean and worst, by name, of the scores of clients' models."""
    if not scores:
        return None
    values: dict[str, list[float]] = {}
    for client_scores in scores:
        for name, score in client_scores.items():
            # Clients may send different names, so that each name has its own count.
            values.setdefault(name, []).append(score.value)
    # Clients choose the names, so their union may exceed what a set of scores holds.
    names = sorted(values, key=lambda name: (name != LOSS, name != PERPLEXITY, -len(values[name]), name))
    shown = {name: values[name] for name in names[:MOST_SCORES]}
    return ScoreSummary(
        mean={
            name: Score(value=_mean(client_values), count=len(client_values))
            for name, client_values in shown.items()
        },
        worst={
            name: Score(value=_worst(name, client_values), count=len(client_values))
            for name, client_values in shown.items()
        },
    )


def _worst(name: str, values: Sequence[float]) -> float:
    return max(values) if name in LOWER_IS_BETTER else min(values)


def _mean(values: Sequence[float]) -> float:
    """Return the mean of non-negative values, scaled by the largest so that their sum does not overflow."""
    top = max(values)
    return top * (math.fsum(value / top for value in values) / len(values)) if top > 0 else 0.0


def _guard_rows(read: Callable[[bytes], Row], stored: Sequence[bytes | None]) -> list[Row] | None:
    """Return the guard's stored rows; None for a round without a guard."""
    rows = [read(row) for row in stored if row is not None]
    return rows if len(rows) == len(stored) else None


def _numbers(stored: bytes) -> list[float]:
    return [float(value) for value in np.frombuffer(stored, "<f8")]


def _numbers_or_none(stored: bytes) -> list[float | None]:
    return [None if math.isnan(value) else value for value in _numbers(stored)]


def _cosines(clients: int, stored: bytes) -> list[float | None]:
    """Return the cosines of changes from a stored row; null = not compared."""
    products, lengths, *further_rows = np.frombuffer(stored, "<f8").reshape(-1, clients)
    if further_rows:
        return [None if math.isnan(value) else value for value in further_rows[1].tolist()]
    # Release 0.2.0 stored products and lengths only.
    pairs = zip(products.tolist(), lengths.tolist(), strict=True)
    return [product / length if length > 0 else None for product, length in pairs]


def _reasons(stored: bytes) -> list[list[HeldFor]]:
    return [[name for flag, name in _HELD_NAMES if WeightReduction(flags) & flag] for flags in stored]


def _seconds(row: RoundRow, now: datetime) -> dict[str, float]:
    begins = {
        "open": row.opened_at,
        "collecting": row.collecting_at,
        "summing": row.summing_at,
        "closing": row.closing_at,
        "aggregating": row.aggregating_at,
    }
    reached = [(phase, begin) for phase, begin in begins.items() if begin is not None]
    ends = [begin for _, begin in reached[1:]] + [row.ended_at or now]
    return {
        phase: max(0.0, (end - begin).total_seconds())
        for (phase, begin), end in zip(reached, ends, strict=True)
    }


def participation_state(stored: str) -> ParticipationState:
    return next(state for state in _STATES if state == stored)
