"""Restrict views of rounds for clients, so that no client can compute what another client sent.

A sum or mean over other clients changes by one client's figure when it arrives. So a client sees its own
bytes, a mean of scores over a final set only, and relevance in two decimals.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import bindparam, select
from sqlalchemy.orm import Session

from coordinator.db.engine import database_time, run
from coordinator.db.tables.federations import ParticipationRow, RoundRow, ScoresRow
from coordinator.rounds import queries, scores, views
from schemas.messages.enrolment import Traffic
from schemas.messages.rounds import RelevanceView, RoundSummary, RoundView
from schemas.messages.scores import Scores, ScoreSummary

LEAST_CLIENTS = 3
"""The smallest number of clients in a mean of scores, including the reading client."""

_DECIMALS = 2
_SCORES_OF_ARRIVED = (
    select(ScoresRow.scores)
    .join(
        ParticipationRow,
        (ParticipationRow.round_id == ScoresRow.round_id)
        & (ParticipationRow.client_id == ScoresRow.client_id),
    )
    .where(ScoresRow.round_id == bindparam("round"), ParticipationRow.state == "arrived")
    .order_by(ScoresRow.client_id)
)
_TRAFFIC = select(ParticipationRow.bytes_up, ParticipationRow.bytes_down).where(
    ParticipationRow.round_id == bindparam("round"), ParticipationRow.client_id == bindparam("client")
)


def summary(session: Session, row: RoundRow, now: datetime, client_id: str) -> RoundSummary:
    shown = views.summary(session, row, now)
    up, down = _traffic(session, row.id, client_id)
    return shown.model_copy(
        update={
            "bytes": Traffic(up=up, down=down),
            "scores": _scores(session, row) if shown.scores is not None else None,
        }
    )


def view(session: Session, row: RoundRow, client_id: str) -> RoundView:
    return views.view_of(
        session, row, summary(session, row, database_time(session), client_id), only=client_id
    )


def relevance(session: Session, row: RoundRow, client_id: str) -> RelevanceView:
    """Return a client's own row of a published round's relevance, in two decimals.

    Cosines are left out: a client that sends unit vectors in turn would read every peer's sketch from them,
    coordinate by coordinate.

    Raises:
        NotFound: the round has no relevance, or none of this client.
    """
    exact = views.relevance(session, row, only=client_id)
    return exact.model_copy(
        update={
            "relevance": _rounded(exact.relevance),
            "similarity": None,
            "entropy": [round(value, _DECIMALS) for value in exact.entropy],
            "served": _rounded(exact.served) if exact.served is not None else None,
            "agreement": None,
        }
    )


def _scores(session: Session, row: RoundRow) -> ScoreSummary | None:
    """Return the mean over the clients whose update arrived, once no further scores can change it."""
    if row.state != "published":
        return None
    arrived = queries.tallies(session, row.id).get("arrived")
    if arrived is None or arrived.scores < LEAST_CLIENTS:
        return None
    if arrived.scores < arrived.clients and scores.are_accepted(session, row.federation_id, row.number):
        return None
    round_scores = [Scores.model_validate(stored) for stored in _scores_of_arrived(session, row.id)]
    # One client's `final` would show as a change of the mean: final scores count once all have sent them.
    is_final = all(sent.final is not None for sent in round_scores)
    shown = views.summarise([sent.personal if is_final else sent.of_kept for sent in round_scores])
    if shown is None:
        return None
    mean = {name: score for name, score in shown.mean.items() if score.count >= LEAST_CLIENTS}
    return shown.model_copy(update={"mean": mean, "worst": None})


def _rounded(rows: Sequence[Sequence[float]]) -> list[list[float]]:
    return [[round(value, _DECIMALS) for value in row] for row in rows]


def _scores_of_arrived(session: Session, round_id: int) -> list[dict[str, Any]]:
    return list(run(session, _SCORES_OF_ARRIVED, {"round": round_id}).scalars())


def _traffic(session: Session, round_id: int, client_id: str) -> tuple[int, int]:
    row = run(session, _TRAFFIC, {"round": round_id, "client": client_id}).first()
    return (row.bytes_up, row.bytes_down) if row is not None else (0, 0)
