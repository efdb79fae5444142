"""The one lock that orders changes: a federation's row. Members, rounds and events change under it."""

from __future__ import annotations

from sqlalchemy.orm import Session

from coordinator.errors import NotFound
from coordinator.tables import FederationRow


def lock_federation(session: Session, fid: str) -> FederationRow:
    """Take a federation's lock until the commit, before any other row of it, and see the row as it is now.

    Raises:
        NotFound: there is no such federation.
    """
    row = session.get(FederationRow, fid, with_for_update=True, populate_existing=True)
    if row is None:
        raise NotFound
    return row
