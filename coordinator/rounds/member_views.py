"""Restrict views of rounds for clients, so that no client can compute what another client sent.

A sum or mean over other clients changes by one client's figure when it arrives. So a client sees its own
bytes, a mean of scores over a final set with three other clients only, and relevance in two decimals.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import datetime

from sqlalchemy import bindparam, select
from sqlalchemy.orm import Session

from coordinator.db.engine import database_time, run
from coordinator.db.tables.federations import ParticipationRow, RoundRow, ScoresRow
from coordinator.rounds import scores, sum_views, views
from schemas.messages.enrolment import Traffic
from schemas.messages.rounds import RelevanceView, RoundSummary, RoundView
from schemas.messages.scores import LOSS, PERPLEXITY, Score, Scores, ScoreSummary

# Coarse, so that a client cannot compute from a change of its weights what another one sent.
_DECIMALS = 2
_SCORE_DECIMALS = 3
_SCORES_OF_ARRIVED = (
    select(ScoresRow.client_id, ScoresRow.scores)
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
    restricted = {
        "bytes": Traffic(up=up, down=down),
        "scores": _shown_scores(session, row, client_id, shown.scores),
    }
    return shown.model_copy(update=restricted)


def view(session: Session, row: RoundRow, client_id: str) -> RoundView:
    return views.view_of(
        session, row, summary(session, row, database_time(session), client_id), only=client_id
    )


def public_scores(session: Session, row: RoundRow, now: datetime) -> ScoreSummary | None:
    """Return a round's mean scores as members see them, over at least three others; None while hidden."""
    return _shown_scores(session, row, "", views.summary(session, row, now).scores)


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
            "changes": None,
        }
    )


def _shown_scores(
    session: Session, row: RoundRow, client_id: str, all_scores: ScoreSummary | None
) -> ScoreSummary | None:
    if all_scores is None:
        return None
    if row.summing_at is None or all_scores.worst is not None:
        return _scores(session, row, client_id)
    mean = sum_views.for_clients(all_scores.mean)
    return sum_views.summary_of({"trained": mean[LOSS]}) if mean is not None else None


def _scores(session: Session, row: RoundRow, client_id: str) -> ScoreSummary | None:
    """Return the mean over the clients whose update arrived, once no further scores can change it.

    A name needs enough clients beside the reader, who could subtract its own value, or send a value under any
    name. There is no mean perplexity: it is a second equation about the same losses.
    """
    if row.state != "published":
        return None
    if not scores.are_complete(session, row.id, row.state) and scores.are_accepted(
        session, row.federation_id, row.number
    ):
        return None
    client_scores = _scores_of_arrived(session, row.id)
    # One client's `final` would show as a change of the mean: final scores count once all have sent them.
    is_final = all(answer.final is not None for answer in client_scores.values())
    named = {
        client: answer.personal if is_final else answer.kept_scores
        for client, answer in client_scores.items()
    }
    shown = views.summarise(list(named.values()))
    peers_by_name = Counter(
        name for client, values in named.items() if client != client_id for name in values
    )
    if shown is None or peers_by_name[LOSS] < scores.LEAST_CLIENTS:
        return None
    mean = {
        name: Score(value=round(score.value, _SCORE_DECIMALS), count=score.count)
        for name, score in shown.mean.items()
        if peers_by_name[name] >= scores.LEAST_CLIENTS and name != PERPLEXITY
    }
    return shown.model_copy(update={"mean": mean, "worst": None})


def _rounded(rows: Sequence[Sequence[float]]) -> list[list[float]]:
    return [[round(value, _DECIMALS) for value in row] for row in rows]


def _scores_of_arrived(session: Session, round_id: int) -> dict[str, Scores]:
    rows = run(session, _SCORES_OF_ARRIVED, {"round": round_id})
    return {client_id: Scores.model_validate(stored) for client_id, stored in rows}


def _traffic(session: Session, round_id: int, client_id: str) -> tuple[int, int]:
    row = run(session, _TRAFFIC, {"round": round_id, "client": client_id}).first()
    return (row.bytes_up, row.bytes_down) if row is not None else (0, 0)
