"""The one lock that orders changes: a federation's row. Members, rounds and events change under it."""

from __future__ import annotations

from sqlalchemy import bindparam, select
from sqlalchemy.orm import Session

from coordinator.errors import NotFound
from coordinator.tables import FederationRow

_LOCKED = (
    select(FederationRow)
    .where(FederationRow.id == bindparam("fid"))
    .with_for_update()
    .execution_options(populate_existing=True)
)


def lock_federation(session: Session, fid: str) -> FederationRow:
    """Take a federation's lock until the commit, before any other row of it, and see the row as it is now.

    Raises:
        NotFound: there is no such federation.
    """
    row = session.scalar(_LOCKED, {"fid": fid})
    if row is None:
        raise NotFound
    return row
