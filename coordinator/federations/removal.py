"""Remove a federation that never had a round."""

from __future__ import annotations

from sqlalchemy import delete, exists, select
from sqlalchemy.orm import Session

from coordinator.db.tables.alignment import AnchorsRow, PackRow
from coordinator.db.tables.federations import ClientRow, FederationRow, RoundRow, Table
from coordinator.db.tables.identity import NameKeyRow
from coordinator.errors import FederationStateConflict
from coordinator.storage import payloads


def remove(session: Session, federation: FederationRow) -> None:
    """Delete the rows of a federation and of its clients. The caller holds its lock.

    Garbage collection deletes the payloads. The audit log keeps its entries, and the federation's name stays
    reserved until another spelling of it is wanted.

    Raises:
        FederationStateConflict: it had a round.
    """
    federation_id = federation.id
    if session.scalar(select(exists().where(RoundRow.federation_id == federation_id))):
        raise FederationStateConflict(
            f"the federation {federation.name!r} was started, and its rounds are kept; finish it instead",
            state=federation.state,
        )
    for table in (AnchorsRow, PackRow):  # a download may be in progress
        stored = select(table.payload_id).where(table.federation_id == federation_id)
        payloads.start_grace(session, *session.scalars(stored))
    clients = select(ClientRow.id).where(ClientRow.federation_id == federation_id)
    session.execute(delete(NameKeyRow).where(NameKeyRow.scope == federation_id))
    # Tables that refer to others come first. Those of rounds have no row.
    for table in reversed(Table.metadata.sorted_tables):
        if "federation_id" in table.c:
            session.execute(delete(table).where(table.c.federation_id == federation_id))
        elif "client_id" in table.c:
            session.execute(delete(table).where(table.c.client_id.in_(clients)))
    session.delete(federation)
    session.flush()
