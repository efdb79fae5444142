"""Build the view of a round's secure sum: its sessions, who answered, and how each ended."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import bindparam, func, select
from sqlalchemy.orm import Session

from coordinator.db.engine import run
from coordinator.db.tables.federations import RoundRow
from coordinator.db.tables.secure_sum import SumMessageRow, SumSessionRow
from coordinator.rounds.sums import ENDED_SESSIONS
from schemas.messages.secure_sum import SumSessionView, SumView

_SESSIONS = (
    select(SumSessionRow).where(SumSessionRow.round_id == bindparam("round")).order_by(SumSessionRow.number)
)
_ANSWERED = (
    select(func.count())
    .select_from(SumMessageRow)
    .where(SumMessageRow.session_id == bindparam("session"), SumMessageRow.step == bindparam("step"))
)


def sum_view(session: Session, row: RoundRow, now: datetime) -> SumView:
    sessions = list(session.scalars(_SESSIONS, {"round": row.id}))
    done = [summed for summed in sessions if summed.kind == "sum" and summed.state == "done"]
    return SumView(
        sessions=[_session_view(session, summed, now) for summed in sessions],
        counted=len(done[-1].closed["masked"]["members"]) if done else None,
    )


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
