"""When a client was here last: written down in a short write of its own, and only when that is due."""

from __future__ import annotations

from datetime import datetime, timedelta

from sqlalchemy import or_, update
from sqlalchemy.exc import OperationalError

from coordinator.database import Database, now
from coordinator.tables import ClientRow

_AGAIN_AFTER = timedelta(seconds=15)


def is_due(last_seen_at: datetime | None, moment: datetime) -> bool:
    """Say whether it is to be written down that a client is here at `moment`."""
    return last_seen_at is None or last_seen_at <= moment - _AGAIN_AFTER


def note(database: Database, client_id: str) -> None:
    """Write down that a client is here now, unless another request just did."""
    try:
        with database.write() as session:
            moment = now(session)
            stale = or_(ClientRow.last_seen_at.is_(None), ClientRow.last_seen_at <= moment - _AGAIN_AFTER)
            session.execute(
                update(ClientRow).where(ClientRow.id == client_id, stale).values(last_seen_at=moment)
            )
    except OperationalError:
        # A busy database must not cost the client its request: it is seen again with the next one.
        return
