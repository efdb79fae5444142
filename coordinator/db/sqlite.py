"""How SQLite is connected to: pages, caches, journal, and transactions that take the write lock at once."""

from __future__ import annotations

import sqlite3
from threading import Lock
from typing import Any

from sqlalchemy.dialects import registry
from sqlalchemy.dialects.sqlite.pysqlite import SQLiteDialect_pysqlite
from sqlalchemy.engine.interfaces import DBAPIConnection
from sqlalchemy.pool import ConnectionPoolEntry, PoolProxiedConnection

BUSY_MILLISECONDS = 10_000
"""How long each lock is waited for, of whichever database."""

# A chunk of tensors is a chain of pages: with the usual 4 KiB, following it costs four times as much.
_PAGE_BYTES = 16384
# Per connection, and there are dozens; the operating system caches the file anyway. Who writes keeps what a
# transaction changes, so that it goes to the disk once.
_CACHE_KIB = {"writing": 1024, "reading": 256}
# Before this version concurrent writers can corrupt a write-ahead log when it is reset.
_FIRST_SAFE_WAL = (3, 51, 3)
DRIVERS = {"writing": "sqlite+tessera_writing", "reading": "sqlite+pysqlite"}
"""What SQLAlchemy calls the connections that write and those that read."""


class _WritingSqlite(SQLiteDialect_pysqlite):
    """SQLite whose transactions take the write lock when they begin, which is with their first statement.

    A listener to the engine's "begin" would have every statement told to listeners. The writers of an engine,
    and so of a process, come one after the other: SQLite's own way to wait is to sleep, up to a tenth of a
    second at a time, while nobody writes.
    """

    supports_statement_cache = True

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._turn = Lock()
        self._writer: object = None

    def do_begin(self, dbapi_connection: PoolProxiedConnection) -> None:
        """Begin to write, when it is this connection's turn."""
        if not self._turn.acquire(timeout=BUSY_MILLISECONDS / 1000):
            raise sqlite3.OperationalError("database is locked")
        self._writer = dbapi_connection.driver_connection
        try:
            dbapi_connection.execute("BEGIN IMMEDIATE")
        except BaseException:
            self._end_turn(self._writer)
            raise

    def do_commit(self, dbapi_connection: PoolProxiedConnection) -> None:
        """Keep what was written; what cannot be kept is rolled back by who asked."""
        dbapi_connection.commit()
        self._end_turn(dbapi_connection.driver_connection)

    def do_rollback(self, dbapi_connection: PoolProxiedConnection) -> None:
        """Forget what was written, if anything was."""
        try:
            dbapi_connection.rollback()
        finally:
            self._end_turn(dbapi_connection.driver_connection)

    def do_close(self, dbapi_connection: DBAPIConnection) -> None:
        """Close a connection, whatever it was at."""
        try:
            dbapi_connection.close()
        finally:
            self._end_turn(dbapi_connection)

    def _end_turn(self, connection: object) -> None:
        if self._writer is connection is not None:
            self._writer = None
            self._turn.release()


registry.register(DRIVERS["writing"].replace("+", "."), __name__, _WritingSqlite.__name__)


def prepare(use: str, connection: DBAPIConnection, _: ConnectionPoolEntry) -> None:
    """Set a new connection up for its use, one of `DRIVERS`."""
    if not isinstance(connection, sqlite3.Connection):
        raise TypeError("not the standard SQLite driver")
    connection.isolation_level = None  # the driver must not begin transactions of its own
    journal = "WAL" if sqlite3.sqlite_version_info >= _FIRST_SAFE_WAL else "TRUNCATE"
    for pragma in (
        f"busy_timeout={BUSY_MILLISECONDS}",
        f"page_size={_PAGE_BYTES}",  # of new files; an older file keeps its own
        f"cache_size=-{_CACHE_KIB[use]}",
        "foreign_keys=ON",
        f"journal_mode={journal}",
        "synchronous=FULL",
    ):
        connection.execute(f"PRAGMA {pragma}")
