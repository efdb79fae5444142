"""The effects of a round on the sessions of its secure sum: end them, and delete their messages.

Each function needs the caller's write transaction with the federation's row locked.
"""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime

from sqlalchemy import delete, select, update
from sqlalchemy.orm import Session

from coordinator.db.tables.federations import FederationRow, ParticipationRow, RoundRow
from coordinator.db.tables.secure_sum import SumMessageRow, SumSessionRow

ENDED_SESSIONS = ("done", "aborted")
"""States that a session never leaves; it has no messages then."""


def count_phase(session: Session, federation_id: str) -> None:
    """Count a change of the federation's sums, for which members may be waiting."""
    session.execute(
        update(FederationRow)
        .where(FederationRow.id == federation_id)
        .values(sum_phase=FederationRow.sum_phase + 1)
        .execution_options(synchronize_session=False)
    )


def delete_messages(session: Session, session_id: int) -> None:
    """Delete all messages of a session; garbage collection follows for the masked vectors."""
    session.execute(
        delete(SumMessageRow)
        .where(SumMessageRow.session_id == session_id)
        .execution_options(synchronize_session=False)
    )


def abort_sessions(session: Session, row: RoundRow, reason: str, now: datetime) -> None:
    """Abort the live session of a round, if there is one, and delete its messages."""
    live = select(SumSessionRow).where(
        SumSessionRow.round_id == row.id, SumSessionRow.state.not_in(ENDED_SESSIONS)
    )
    for summed in session.scalars(live.with_for_update().execution_options(populate_existing=True)):
        summed.state, summed.version, summed.reason = "aborted", summed.version + 1, reason
        summed.ended_at, summed.lease_token, summed.lease_expires_at = now, None, None
        delete_messages(session, summed.id)
    session.flush()
    count_phase(session, row.federation_id)


def settle_participations(session: Session, round_id: int, counted: Collection[str]) -> None:
    """Record whose inputs are in the sum: they have arrived, and all other ready clients were dropped."""
    ready = (
        update(ParticipationRow)
        .where(ParticipationRow.round_id == round_id, ParticipationRow.state == "ready")
        .execution_options(synchronize_session=False)
    )
    session.execute(ready.where(ParticipationRow.client_id.in_(counted)).values(state="arrived"))
    # A client that is still `ready` after the first statement is not in the sum.
    session.execute(ready.values(state="dropped"))
