"""Configure connections to SQLite: pages, caches, journal, and transactions that take the write lock at
once.
"""

from __future__ import annotations

import sqlite3
from threading import Lock
from typing import Any

from sqlalchemy.dialects import registry
from sqlalchemy.dialects.sqlite.pysqlite import SQLiteDialect_pysqlite
from sqlalchemy.engine.interfaces import DBAPIConnection
from sqlalchemy.pool import ConnectionPoolEntry, PoolProxiedConnection

BUSY_MILLISECONDS = 10_000
"""Longest wait for a lock, on every database."""

# A chunk of tensors is a chain of pages: with the usual 4 KiB, reading it costs four times as much.
_PAGE_BYTES = 16384
# Per connection, of which there are dozens; the operating system caches the file as well. A writer's cache
# holds the changes of a transaction, so that they are written once.
_CACHE_KIB = {"writing": 1024, "reading": 256}
# Before this version concurrent writers can corrupt a write-ahead log when it is reset.
_FIRST_SAFE_WAL = (3, 51, 3)
DRIVERS = {"writing": "sqlite+tessera_writing", "reading": "sqlite+pysqlite"}
"""SQLAlchemy's driver names of writing and reading connections."""


class _WritingSqlite(SQLiteDialect_pysqlite):
    """SQLite dialect whose transactions take the write lock at their first statement.

    A listener to the engine's "begin" event would slow down every statement. Writers of a process queue for a
    lock here: SQLite itself waits by sleeping, up to a tenth of a second at a time.
    """

    supports_statement_cache = True

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._write_lock = Lock()
        self._writer: object = None

    def do_begin(self, dbapi_connection: PoolProxiedConnection) -> None:
        if not self._write_lock.acquire(timeout=BUSY_MILLISECONDS / 1000):
            raise sqlite3.OperationalError("database is locked")
        self._writer = dbapi_connection.driver_connection
        try:
            dbapi_connection.execute("BEGIN IMMEDIATE")
        # Also for a cancelled request: a lock that nobody releases would stop all writers.
        except BaseException:
            self._release(self._writer)
            raise

    def do_commit(self, dbapi_connection: PoolProxiedConnection) -> None:
        """Commit; if that fails, the caller rolls back."""
        dbapi_connection.commit()
        self._release(dbapi_connection.driver_connection)

    def do_rollback(self, dbapi_connection: PoolProxiedConnection) -> None:
        try:
            dbapi_connection.rollback()
        finally:
            self._release(dbapi_connection.driver_connection)

    def do_close(self, dbapi_connection: DBAPIConnection) -> None:
        try:
            dbapi_connection.close()
        finally:
            self._release(dbapi_connection)

    def _release(self, connection: object) -> None:
        if self._writer is connection is not None:
            self._writer = None
            self._write_lock.release()


registry.register(DRIVERS["writing"].replace("+", "."), __name__, _WritingSqlite.__name__)


def prepare(use: str, connection: DBAPIConnection, _: ConnectionPoolEntry) -> None:
    """Configure a new connection for a use of `DRIVERS`."""
    if not isinstance(connection, sqlite3.Connection):
        raise TypeError("not the standard SQLite driver")
    connection.isolation_level = None  # the driver must not begin transactions of its own
    journal = "WAL" if sqlite3.sqlite_version_info >= _FIRST_SAFE_WAL else "TRUNCATE"
    for pragma in (
        f"busy_timeout={BUSY_MILLISECONDS}",
        f"page_size={_PAGE_BYTES}",  # for new files; an existing file keeps its page size
        f"cache_size=-{_CACHE_KIB[use]}",
        "foreign_keys=ON",
        f"journal_mode={journal}",
        "synchronous=FULL",
    ):
        connection.execute(f"PRAGMA {pragma}")
