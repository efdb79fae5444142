"""What a client may see of a round: nothing from which it can compute what another client sent.

Sums and means over the others change by one client's own figure when that client's arrives. So a client
gets its own bytes, and a mean of scores only over a set that changes no more; relevance in two decimals.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import bindparam, select
from sqlalchemy.orm import Session

from coordinator.db.engine import now, run
from coordinator.db.tables.federations import ParticipationRow, RoundRow, ScoresRow
from coordinator.rounds import queries, scores, views
from schemas.messages.enrolment import Traffic
from schemas.messages.rounds import RelevanceView, RoundSummary, RoundView, Scores, ScoreSummary

LEAST_CLIENTS = 3
"""How many clients a mean of scores is over at least, the one that reads it included."""

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


def summary(session: Session, row: RoundRow, moment: datetime, client_id: str) -> RoundSummary:
    """Return a round as it stands at `moment`, as one client may see it."""
    shown = views.summary(session, row, moment)
    up, down = _traffic(session, row.id, client_id)
    return shown.model_copy(
        update={
            "bytes": Traffic(up=up, down=down),
            "scores": _scores(session, row) if shown.scores is not None else None,
        }
    )


def view(session: Session, row: RoundRow, client_id: str) -> RoundView:
    """Return a round with this client's own entry only."""
    return views.view_of(session, row, summary(session, row, now(session), client_id), only=client_id)


def relevance(session: Session, row: RoundRow, client_id: str) -> RelevanceView:
    """Return a client's own row of a published round's relevance, in two decimals.

    Cosines are left out: a client that sends one unit vector after the other reads a coordinate of every
    peer's sketch from each.

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
    """Return the mean over the clients that delivered, once no other client can join it."""
    if row.state != "published":
        return None
    arrived = queries.tallies(session, row.id).get("arrived")
    if arrived is None or arrived.scores < LEAST_CLIENTS:
        return None
    if arrived.scores < arrived.clients and scores.are_taken(session, row.federation_id, row.number):
        return None
    sent = [Scores.model_validate(stored) for stored in _scores_of_arrived(session, row.id)]
    shown = views.summarise(sent)
    return shown.model_copy(update={"worst": None}) if shown is not None else None


def _rounded(rows: Sequence[Sequence[float]]) -> list[list[float]]:
    return [[round(value, _DECIMALS) for value in row] for row in rows]


def _scores_of_arrived(session: Session, round_id: int) -> list[dict[str, Any]]:
    """Return the scores of the clients that delivered, in the order of client ids."""
    return list(run(session, _SCORES_OF_ARRIVED, {"round": round_id}).scalars())


def _traffic(session: Session, round_id: int, client_id: str) -> tuple[int, int]:
    """Return the bytes that a client sent and was sent in a round; zeros where it takes no part."""
    row = run(session, _TRAFFIC, {"round": round_id, "client": client_id}).first()
    return (row.bytes_up, row.bytes_down) if row is not None else (0, 0)
