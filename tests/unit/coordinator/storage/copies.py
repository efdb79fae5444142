"""A database with payloads in a store, and a restored copy of it."""

from __future__ import annotations

import base64
import os
from collections.abc import Callable
from datetime import timedelta

import pytest
from pydantic import SecretStr
from sqlalchemy import select, text, update

from coordinator.db.engine import Database, database_time
from coordinator.db.tables.federations import ChunkRow, PayloadRow, PayloadStoreRow
from coordinator.db.tables.identity import ServerIdentityRow
from coordinator.storage import payload_moves, payloads, server_key
from coordinator.storage.ownership import NotOwner

KEY = SecretStr(base64.urlsafe_b64encode(bytes(32)).decode().rstrip("="))
ANY_AGE = timedelta(days=-1)
COPIED = (ServerIdentityRow, PayloadRow, ChunkRow, PayloadStoreRow)

Restore = Callable[[Database], Database]


def copy_rows(database: Database, restored: Database) -> None:
    """Copy the rows of payloads to an empty database."""
    for table in COPIED:
        with database.read() as session:
            rows = [dict(row) for row in session.execute(select(table.__table__)).mappings()]
        with restored.write() as session:
            if rows:
                session.connection().execute(table.__table__.insert(), rows)
            if not restored.is_sqlite and table is PayloadRow:
                session.execute(text("SELECT setval(pg_get_serial_sequence('payloads', 'id'), 1000)"))


def store_and_move(database: Database, store: str, count: int = 1) -> None:
    """Store payloads of a size that is moved, and move them."""
    server_key.load(database, KEY)
    with database.write() as session:
        for _ in range(count):
            payloads.store_bytes(session, os.urandom(payload_moves.SMALLEST))
    assert len(list(payload_moves.move(database, store))) == count


def expire(database: Database) -> None:
    """Make the token old enough to be replaced."""
    with database.write() as session:
        session.execute(
            update(PayloadStoreRow).values(renewed_at=database_time(session) - timedelta(hours=1))
        )


def assert_refused(*databases: Database, store: str) -> None:
    """Check that both databases refuse to put and to delete, with a remedy."""
    for database in databases:
        with database.write() as session:
            payloads.store_bytes(session, os.urandom(payload_moves.SMALLEST))
        with pytest.raises(NotOwner, match="run `tessera payloads take-over` here"):
            list(payload_moves.move(database, store))
        with pytest.raises(NotOwner, match="another database with this signing key"):
            payload_moves.sweep(database, store, unused=ANY_AGE)
