"""Lock a federation's row, which orders changes of its members, rounds and events."""

from __future__ import annotations

from sqlalchemy import bindparam, select, text
from sqlalchemy.orm import Session

from coordinator.db.engine import run
from coordinator.db.tables.federations import FederationRow
from coordinator.errors import NotFound

_LOCKED = (
    select(FederationRow)
    .where(FederationRow.id == bindparam("federation_id"))
    .with_for_update()
    .execution_options(populate_existing=True)
)
_LOCKED_EVENTS = (
    select(FederationRow.events).where(FederationRow.id == bindparam("federation_id")).with_for_update()
)
# `true`: for this transaction only, since the next one on this connection has other limits.
_LOCK_TIMEOUT = text("SELECT set_config('lock_timeout', :timeout, true)")


def set_lock_timeout(session: Session, seconds: float) -> None:
    """Limit the wait for each lock of this transaction, on PostgreSQL.

    SQLite has one lock, which a writing transaction holds from its start.
    """
    if session.get_bind().dialect.name != "sqlite":
        run(session, _LOCK_TIMEOUT, {"timeout": f"{seconds * 1000:.0f}ms"})


def hold_federation(session: Session, federation_id: str) -> int:
    """Lock a federation without loading it; return the number of its last event.

    Raises:
        NotFound: no federation has this id.
    """
    row = run(session, _LOCKED_EVENTS, {"federation_id": federation_id}).first()
    if row is None:
        raise NotFound
    (last_event,) = row
    return last_event


def lock_federation(session: Session, federation_id: str) -> FederationRow:
    """Lock a federation until the commit, before any other row of it; return its current row.

    Raises:
        NotFound: no federation has this id.
    """
    row = session.scalar(_LOCKED, {"federation_id": federation_id})
    if row is None:
        raise NotFound
    return row
