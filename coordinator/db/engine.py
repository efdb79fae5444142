"""Engines and transactions for SQLite and PostgreSQL. A write transaction takes SQLite's write lock when
it begins: one that reads first and writes later would silently lose updates.
"""

from __future__ import annotations

import math
import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from typing import Any, TypeVarTuple, overload

from sqlalchemy import (
    URL,
    Connection,
    CursorResult,
    Engine,
    Executable,
    create_engine,
    event,
    make_url,
    text,
)
from sqlalchemy.engine.interfaces import DBAPIConnection, Dialect
from sqlalchemy.exc import (
    ArgumentError,
    DBAPIError,
    InterfaceError,
    InvalidatePoolError,
    OperationalError,
)
from sqlalchemy.orm import Session
from sqlalchemy.pool import ConnectionPoolEntry, PoolProxiedConnection
from sqlalchemy.sql.selectable import TypedReturnsRows

from coordinator.db.clock import CLOCK_OF_POSTGRESQL, CLOCK_OF_SQLITE
from coordinator.db.group_commit import GroupCommit
from coordinator.db.sqlite import BUSY_MILLISECONDS, DRIVERS, Turns, connect_reader, prepare
from coordinator.errors import SettingsUnusable

Columns = TypeVarTuple("Columns")
Values = Mapping[str, object] | Sequence[Mapping[str, object]] | None

SMALL_WRITES_PER_COMMIT = 32
"""Largest number of small writes, such as nonces, in one transaction."""

# A request that is refused before its body is read loses its connection, so waiting is better. But a nonce
# and a join, each with its wait for the lock, have to end before the agent's timeout of 60 s.
_SMALL_WAIT_SECONDS = 15.0
_TRUSTED_SECONDS = 1.0
# Forty together, as PostgreSQL allows a hundred by default; more readers than polls have threads.
_POSTGRES_CONNECTIONS = {"writing": 16, "reading": 24}
_LAST_USE = "last use"
_UNSAFE = text(
    "SELECT name FROM pg_settings WHERE setting = 'off'"
    " AND name IN ('fsync', 'full_page_writes', 'synchronous_commit')"
)
_BYTES = {
    "sqlite": text("SELECT page_count * page_size FROM pragma_page_count, pragma_page_size"),
    "postgresql": text("SELECT pg_database_size(current_database())"),
}
_CLOCK = text(f"SELECT {CLOCK_OF_POSTGRESQL}")


class Database:
    """One database behind one URL: short read transactions, and write transactions that commit on exit.

    Small writes of requests that arrive at the same time share a transaction through `small_commits`.
    """

    def __init__(
        self,
        url: str,
        *,
        observe_write: Callable[[float], None] | None = None,
        prepare_engine: Callable[[Engine], None] | None = None,
    ) -> None:
        """Connect lazily.

        Args:
            observe_write: called with the seconds of each write transaction.
            prepare_engine: called with each new engine, to listen to its events.
        """
        self.url = _checked(url)
        self._prepare_engine = prepare_engine
        self._observe_write = observe_write
        # One leader: with more, fewer writes would share a transaction.
        self.small_commits = GroupCommit(
            max_leaders=1, max_batch=SMALL_WRITES_PER_COMMIT, max_wait_seconds=_SMALL_WAIT_SECONDS
        )
        self.is_sqlite = self.url.get_backend_name() == "sqlite"
        self._turns = Turns()
        self._writing = self._engine("writing")
        self._begins_explicitly = self.is_sqlite  # the driver does not begin transactions itself
        # SQLite: BEGIN IMMEDIATE would make readers queue behind writers, so they have a separate engine.
        # PostgreSQL: a pool of their own, since writers that wait for a lock keep their connections.
        self._autocommit = self._reading = reading = self._engine("reading")
        if not self.is_sqlite:
            self._autocommit = reading.execution_options(isolation_level="AUTOCOMMIT")
            # All statements of a transaction see one state.
            self._reading = reading.execution_options(
                isolation_level="REPEATABLE READ", postgresql_readonly=True
            )

    @property
    def engine(self) -> Engine:
        """The writing engine, which migrations use."""
        return self._writing

    @contextmanager
    def read(self) -> Iterator[Session]:
        """Yield a session on one consistent state; nothing is committed."""
        with self._sqlalchemy_errors(), Session(self._reading, expire_on_commit=False) as session:
            if self._begins_explicitly:
                sqlite_of(session).execute("BEGIN")
            yield session  # closing rolls back, and the loaded rows stay readable

    @contextmanager
    def autocommit(self) -> Iterator[Connection]:
        """Yield a connection without a transaction, on which each query sees its own state.

        It serves the queries of every request, for which a session would cost more than the answer.
        """
        with self._sqlalchemy_errors(), self._autocommit.connect() as connection:
            yield connection

    @contextmanager
    def driver_connection(self) -> Iterator[Any]:
        """Yield the driver's connection, for reading rows that never change.

        A session would cost more than the chunk of a payload that it fetches. SQLite shows one consistent
        state, PostgreSQL a state per statement.
        """
        with self._sqlalchemy_errors():
            pooled = self._reading.raw_connection()
            try:
                driver: Any = pooled.driver_connection
                if self._begins_explicitly:
                    driver.execute("BEGIN")
                yield driver
            finally:
                pooled.close()  # the pool rolls back

    @contextmanager
    def write(self) -> Iterator[Session]:
        """Yield a session; commit when the block ends, roll back when it raises."""
        began = time.monotonic()
        try:
            with (
                self._sqlalchemy_errors(),
                Session(self._writing, expire_on_commit=False) as session,
                session.begin(),
            ):
                yield session
        finally:
            if self._observe_write is not None:
                self._observe_write(time.monotonic() - began)

    def close(self) -> None:
        self._writing.dispose()
        self._reading.dispose()

    @contextmanager
    def _sqlalchemy_errors(self) -> Iterator[None]:
        """Convert errors of the driver, used directly, to those of SQLAlchemy.

        A full disk during an aggregation must be recognised: the round waits and is not abandoned.
        """
        try:
            yield
        except self._writing.dialect.loaded_dbapi.OperationalError as error:
            raise OperationalError(None, None, error) from error
        except self._writing.dialect.loaded_dbapi.InterfaceError as error:
            raise InterfaceError(None, None, error) from error
        except self._writing.dialect.loaded_dbapi.Error as error:
            raise DBAPIError(None, None, error) from error

    def _engine(self, use: str) -> Engine:
        if not self.is_sqlite:
            engine = create_engine(
                self.url,
                # Kept: PostgreSQL starts a process for each connection, which costs more than a poll, so that
                # opening them anew in a burst makes the burst last.
                pool_size=_POSTGRES_CONNECTIONS[use],
                max_overflow=0,
                hide_parameters=True,  # errors are logged, and parameters include signatures
                connect_args={
                    "prepare_threshold": None,  # for connection poolers
                    "connect_timeout": 10,
                    "options": f"-c statement_timeout=60000 -c lock_timeout={BUSY_MILLISECONDS}"
                    " -c idle_in_transaction_session_timeout=60000"
                    " -c synchronous_commit=on -c timezone=UTC",
                },
            )
            event.listen(engine, "checkin", _record_use)
            event.listen(engine, "checkout", partial(_ping_if_idle, engine.dialect))
            if self._prepare_engine is not None:
                self._prepare_engine(engine)
            return engine
        path = self.url.set(drivername=DRIVERS[use])
        options: dict[str, Any] = (
            {"turns": self._turns}
            if use == "writing"
            else {"connect_args": {"factory": partial(connect_reader, self._turns)}}
        )
        engine = create_engine(path, pool_size=20, max_overflow=20, hide_parameters=True, **options)
        event.listen(engine, "connect", partial(prepare, use))
        if self._prepare_engine is not None:
            self._prepare_engine(engine)
        return engine


@overload
def run(
    bind: Session | Connection, statement: TypedReturnsRows[*Columns], values: Values = ...
) -> CursorResult[*Columns]: ...


@overload
def run(
    bind: Session | Connection, statement: Executable, values: Values = ...
) -> CursorResult[*tuple[Any, ...]]: ...


def run(bind: Session | Connection, statement: Any, values: Values = None) -> Any:
    """Execute a statement without the ORM, whose loading of a row takes longer than the database's look-up.

    For constant statements with parameters. Rows are tuples of columns; pending changes of a session are
    flushed first, as by `Session.execute`.
    """
    if isinstance(bind, Session):
        # Statements on the connection do not make the session flush its pending changes.
        bind.flush()
        bind = bind.connection()
    return bind.execute(statement, values)


def sqlite_of(session: Session) -> sqlite3.Connection:
    """Return the driver's connection of a session, inside its transaction, for frequent or bulk statements.

    Raises:
        TypeError: the database is not SQLite.
    """
    return _driver_of(session.connection())


def driver_of(session: Session) -> Any:
    """Return the driver's connection of a session, inside its transaction."""
    return session.connection().connection.driver_connection


def database_time(bind: Session | Connection) -> datetime:
    """Return the time of the database's clock, on which replicas agree."""
    connection = bind.connection() if isinstance(bind, Session) else bind
    if connection.dialect.name == "sqlite":
        # On SQLite the clock is a function call, so that a statement of SQLAlchemy would cost more than it.
        (now,) = _driver_of(connection).execute(f"SELECT {CLOCK_OF_SQLITE}").fetchone()
        return datetime.fromisoformat(now).replace(tzinfo=UTC)
    now = connection.scalar(_CLOCK)
    if not isinstance(now, datetime):
        raise TypeError("the database returned no time")
    return now.astimezone(UTC)


def stored_bytes(session: Session) -> int:
    """Return the size of the database on its disk."""
    return int(session.scalar(_BYTES[session.get_bind().dialect.name]) or 0)


def unsafe_settings(session: Session) -> list[str]:
    """Return the PostgreSQL settings with which a crash of its machine may lose commits."""
    if session.get_bind().dialect.name == "sqlite":
        return []
    return sorted(session.scalars(_UNSAFE))


def _checked(url: str) -> URL:
    try:
        parsed = make_url(url)
    except (ArgumentError, ValueError) as error:  # ValueError: a port that is not a number
        raise SettingsUnusable(
            "TESSERA_DATABASE_URL is not a database URL; use one like sqlite:///tessera.db or "
            "postgresql://user:password@host:5432/name"
        ) from error
    if parsed.drivername == "postgresql":
        parsed = parsed.set(drivername="postgresql+psycopg")
    if parsed.drivername not in ("sqlite", "sqlite+pysqlite", "postgresql+psycopg"):
        raise SettingsUnusable(
            f"TESSERA_DATABASE_URL: {parsed.drivername} is not supported; use sqlite or postgresql"
        )
    if parsed.get_backend_name() == "sqlite" and parsed.host is not None:
        raise SettingsUnusable(
            f"TESSERA_DATABASE_URL: {parsed.host} stands where a host would; a file has three slashes before "
            "its path, like sqlite:///tessera.db"
        )
    if parsed.get_backend_name() == "sqlite" and parsed.database in (None, "", ":memory:"):
        raise SettingsUnusable(
            "TESSERA_DATABASE_URL: an in-memory database loses its rounds; use a file, like sqlite:///tessera.db"
        )
    return parsed


def _record_use(_: DBAPIConnection | None, entry: ConnectionPoolEntry) -> None:
    entry.info[_LAST_USE] = time.monotonic()


def _ping_if_idle(
    dialect: Dialect, connection: DBAPIConnection, entry: ConnectionPoolEntry, _: PoolProxiedConnection
) -> None:
    """Check that a connection is alive unless it was used a moment ago: a ping costs a round trip."""
    if time.monotonic() - entry.info.get(_LAST_USE, -math.inf) < _TRUSTED_SECONDS:
        return
    try:
        dialect.do_ping(connection)
    except dialect.loaded_dbapi.Error as error:
        raise InvalidatePoolError from error  # the pool opens a new connection


def _driver_of(connection: Connection) -> sqlite3.Connection:
    driver = connection.connection.driver_connection
    if not isinstance(driver, sqlite3.Connection):
        raise TypeError("not the standard SQLite driver")
    return driver
