"""Build the view of a round's secure sum: its sessions, who answered, and how each ended."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from sqlalchemy import bindparam, func, select
from sqlalchemy.orm import Session

from coordinator.db.engine import run
from coordinator.db.tables.federations import RoundRow
from coordinator.db.tables.secure_sum import JointModelRow, SumMessageRow, SumSessionRow
from coordinator.rounds.scores import LEAST_CLIENTS
from coordinator.rounds.sums import ENDED_SESSIONS
from schemas.messages.scores import LOSS, Score, ScoreSummary
from schemas.messages.sum_views import SumSessionView, SumView

_SCORE_DECIMALS = 3
_LOSSES = select(JointModelRow.losses).where(
    JointModelRow.federation_id == bindparam("federation_id"),
    JointModelRow.round_number == bindparam("number"),
)

_SESSIONS = (
    select(SumSessionRow).where(SumSessionRow.round_id == bindparam("round")).order_by(SumSessionRow.number)
)
_ANSWERED = (
    select(func.count())
    .select_from(SumMessageRow)
    .where(SumMessageRow.session_id == bindparam("session"), SumMessageRow.step == bindparam("step"))
)


def sum_view(session: Session, row: RoundRow, now: datetime, *, for_client: bool) -> SumView:
    sessions = list(session.scalars(_SESSIONS, {"round": row.id}))
    done = [summed for summed in sessions if summed.kind == "sum" and summed.state == "done"]
    counted = len(done[-1].closed["masked"]["members"]) if done else None
    losses = mean_losses(session, row, counted or 0)
    if for_client and losses is not None:
        losses = for_clients(losses)
    return SumView(
        sessions=[_session_view(session, summed, now) for summed in sessions],
        counted=counted,
        losses=losses,
    )


def mean_losses(session: Session, row: RoundRow, count: int) -> dict[str, Score] | None:
    """Return the mean losses of the `count` members of a published sum, as `served` and as `trained`.

    None = the round is not published, or scores are not summed.
    """
    if row.summing_at is None or row.state != "published":
        return None
    stored = run(session, _LOSSES, {"federation_id": row.federation_id, "number": row.number}).scalar()
    return {model: Score(value=value, count=count) for model, value in stored.items()} if stored else None


def summary_of(losses: Mapping[str, Score]) -> ScoreSummary:
    """Return the mean loss of the members' trained models as a round's scores."""
    return ScoreSummary(mean={LOSS: losses["trained"]}, worst=None)


def for_clients(losses: Mapping[str, Score]) -> dict[str, Score] | None:
    """Return mean losses for a client, who could subtract its own; None if the others are too few."""
    # The reader is one of the counted members, and can subtract its own loss.
    if any(loss.count <= LEAST_CLIENTS for loss in losses.values()):
        return None
    return {
        model: Score(value=round(loss.value, _SCORE_DECIMALS), count=loss.count)
        for model, loss in losses.items()
    }


def _session_view(session: Session, summed: SumSessionRow, now: datetime) -> SumSessionView:
    answered = {phase: len(closed["members"]) for phase, closed in summed.closed.items()}
    if summed.state not in (*ENDED_SESSIONS, "opening"):
        parameters = {"session": summed.id, "step": summed.state}
        answered[summed.state] = run(session, _ANSWERED, parameters).scalar_one()
    return SumSessionView.model_validate(
        {
            "number": summed.number,
            "kind": summed.kind,
            "state": summed.state,
            "members": len(summed.terms["members"]),
            "answered": answered,
            "seconds": max(0.0, ((summed.ended_at or now) - summed.opened_at).total_seconds()),
            "reason": summed.reason,
        }
    )
