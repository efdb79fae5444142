"""Configure connections to SQLite: pages, caches, journal, transactions that take the write lock at once,
and readers that take turns with writers.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable
from threading import Condition, Lock
from typing import Any, TypeVar

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
# With a rollback journal, readers are shut out while a transaction is written. SQLite makes them wait by
# sleeping up to a tenth of a second at a time, so that they miss the moments between two transactions: a poll
# would wait for a whole aggregation.
_TURN_SECONDS = 0.05  # that a writer leaves to waiting readers before it begins
_LOOK_SECONDS = 0.02  # between the attempts of a reader that another process shuts out
DRIVERS = {"writing": "sqlite+tessera_writing", "reading": "sqlite+pysqlite"}
"""SQLAlchemy's driver names of writing and reading connections."""


Result = TypeVar("Result")


class Turns:
    """The turns of readers between the transactions of a process's writers."""

    def __init__(self) -> None:
        self._changed = Condition()
        self._writes = 0
        self._waiting_readers = 0

    def read(self, attempt: Callable[[], Result]) -> Result:
        """Call `attempt` and return its result; while writers shut it out, retry after each transaction.

        Raises:
            sqlite3.OperationalError: the database stayed locked for ten seconds, or another error occurred.
        """
        writes = self._writes
        try:
            return attempt()
        except sqlite3.OperationalError as error:
            if not _is_busy(error):
                raise

        def is_over() -> bool:
            return self._writes != writes

        deadline = time.monotonic() + BUSY_MILLISECONDS / 1000
        self._wait_as_reader(1)
        try:
            while True:
                with self._changed:
                    self._changed.wait_for(is_over, _LOOK_SECONDS)
                    writes = self._writes
                try:
                    return attempt()
                except sqlite3.OperationalError as error:
                    if not _is_busy(error) or time.monotonic() > deadline:
                        raise
        finally:
            self._wait_as_reader(-1)

    def let_readers_pass(self) -> None:
        """Wait a moment for the readers that waited during the last transaction."""
        with self._changed:
            self._changed.wait_for(lambda: not self._waiting_readers, _TURN_SECONDS)

    def end_write(self) -> None:
        """Wake the readers after a transaction."""
        with self._changed:
            self._writes += 1
            self._changed.notify_all()

    def _wait_as_reader(self, change: int) -> None:
        """Add `change` to the number of waiting readers: 1 to begin a wait, -1 to end it."""
        with self._changed:
            self._waiting_readers += change
            self._changed.notify_all()


def _is_busy(error: sqlite3.OperationalError) -> bool:
    return getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_BUSY  # of an extended code


class _ReadingCursor(sqlite3.Cursor):
    connection: ReadingConnection

    def execute(self, *arguments: Any) -> _ReadingCursor:
        return self.connection.turns.read(lambda: super(_ReadingCursor, self).execute(*arguments))


class ReadingConnection(sqlite3.Connection):
    """A connection whose statements take turns with the writers of this process."""

    turns: Turns

    def cursor(self, factory: Any = _ReadingCursor) -> Any:
        """Return a cursor whose statements take turns."""
        return super().cursor(factory)

    def execute(self, *arguments: Any) -> Any:
        """Execute a statement with a new cursor: the driver's own method would use a plain one."""
        return self.cursor().execute(*arguments)


def connect_reader(turns: Turns, *arguments: Any, **options: Any) -> ReadingConnection:
    """Return a new connection, as a `factory` of the driver."""
    connection = ReadingConnection(*arguments, **options)
    connection.turns = turns
    return connection


class _WritingSqlite(SQLiteDialect_pysqlite):
    """SQLite dialect whose transactions take the write lock at their first statement.

    A listener to the engine's "begin" event would slow down every statement. Writers of a process queue for a
    lock here: SQLite itself waits by sleeping, up to a tenth of a second at a time.
    """

    supports_statement_cache = True

    def __init__(self, turns: Turns, **options: Any) -> None:
        super().__init__(**options)
        self._turns = turns
        self._write_lock = Lock()
        self._writer: object = None

    def do_begin(self, dbapi_connection: PoolProxiedConnection) -> None:
        if not self._write_lock.acquire(timeout=BUSY_MILLISECONDS / 1000):
            raise sqlite3.OperationalError("database is locked")
        self._writer = dbapi_connection.driver_connection
        try:
            self._turns.let_readers_pass()
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
            self._turns.end_write()
            self._write_lock.release()


registry.register(DRIVERS["writing"].replace("+", "."), __name__, _WritingSqlite.__name__)


def prepare(use: str, connection: DBAPIConnection, _: ConnectionPoolEntry) -> None:
    """Configure a new connection for a use of `DRIVERS`."""
    if not isinstance(connection, sqlite3.Connection):
        raise TypeError("not the standard SQLite driver")
    connection.isolation_level = None  # the driver must not begin transactions of its own
    journal = "WAL" if sqlite3.sqlite_version_info >= _FIRST_SAFE_WAL else "TRUNCATE"
    for pragma in (
        f"busy_timeout={BUSY_MILLISECONDS if use == 'writing' else 0}",  # readers wait for their turn
        f"page_size={_PAGE_BYTES}",  # for new files; an existing file keeps its page size
        f"cache_size=-{_CACHE_KIB[use]}",
        "foreign_keys=ON",
        f"journal_mode={journal}",
        "synchronous=FULL",
    ):
        connection.execute(f"PRAGMA {pragma}")
