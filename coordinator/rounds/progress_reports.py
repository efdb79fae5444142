"""Reports of clients on their training: stored in place of the last report, shown while they train."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import bindparam, select
from sqlalchemy.orm import Session

from coordinator.db.engine import database_time, run
from coordinator.db.tables.federations import ParticipationRow, ProgressRow, RoundRow
from coordinator.errors import NotFound, NotJoined, RoundClosed
from schemas.messages.progress import Progress, ProgressView

_TRAINING = ("open", "collecting")
_PLACE = (
    select(RoundRow.id, RoundRow.state.label("round_state"), ParticipationRow.state)
    .outerjoin(
        ParticipationRow,
        (ParticipationRow.round_id == RoundRow.id) & (ParticipationRow.client_id == bindparam("client")),
    )
    .where(RoundRow.federation_id == bindparam("federation_id"), RoundRow.number == bindparam("number"))
)


def store_progress(
    session: Session, federation_id: str, number: int, client_id: str, progress: Progress
) -> None:
    """Store a client's report in place of its last one.

    Raises:
        NotFound: there is no such round.
        NotJoined: the client has not joined it.
        RoundClosed: the round has ended, or the client's part in it.
    """
    place = {"client": client_id, "federation_id": federation_id, "number": number}
    row = run(session, _PLACE, place).first()
    if row is None:
        raise NotFound
    round_id, round_state, state = row
    if state is None:
        raise NotJoined
    if round_state not in _TRAINING or state != "joined":
        raise RoundClosed(state=round_state)
    session.merge(
        ProgressRow(
            round_id=round_id,
            client_id=client_id,
            report=progress.model_dump(mode="json"),
            reported_at=database_time(session),
        )
    )


def progress_of(
    report: dict[str, Any] | None, reported_at: datetime | None, state: str, round_state: str
) -> ProgressView | None:
    """Return the report of a client that still trains; None otherwise."""
    # After its update or the round's end a client trains no more; its last report would say otherwise.
    if report is None or reported_at is None or state != "joined" or round_state not in _TRAINING:
        return None
    return ProgressView(at=reported_at, **report)
