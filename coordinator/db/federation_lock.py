"""The one lock that orders changes: a federation's row. Members, rounds and events change under it."""

from __future__ import annotations

from sqlalchemy import bindparam, select, text
from sqlalchemy.orm import Session

from coordinator.db.engine import run
from coordinator.db.tables.federations import FederationRow
from coordinator.errors import NotFound

_LOCKED = (
    select(FederationRow)
    .where(FederationRow.id == bindparam("fid"))
    .with_for_update()
    .execution_options(populate_existing=True)
)
_HELD = select(FederationRow.events).where(FederationRow.id == bindparam("fid")).with_for_update()
_PATIENCE = text("SELECT set_config('lock_timeout', :patience, true)")


def wait_at_most(session: Session, seconds: float) -> None:
    """Wait for each lock of this transaction so long at most, for who has others to care for.

    SQLite knows one lock, which a transaction that writes has from its beginning.
    """
    if session.get_bind().dialect.name != "sqlite":
        run(session, _PATIENCE, {"patience": f"{seconds * 1000:.0f}ms"})


def hold_federation(session: Session, fid: str) -> int:
    """Take a federation's lock for who changes nothing of its row; give the number of its last event.

    Raises:
        NotFound: there is no such federation.
    """
    found = run(session, _HELD, {"fid": fid}).first()
    if found is None:
        raise NotFound
    (last_event,) = found
    return last_event


def lock_federation(session: Session, fid: str) -> FederationRow:
    """Take a federation's lock until the commit, before any other row of it, and see the row as it is now.

    Raises:
        NotFound: there is no such federation.
    """
    row = session.scalar(_LOCKED, {"fid": fid})
    if row is None:
        raise NotFound
    return row
