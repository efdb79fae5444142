"""Engines and transactions for SQLite and PostgreSQL; knows no table's meaning.

Every write transaction says so when it begins: on SQLite it takes the write lock at once (a transaction that
reads first and writes later loses updates silently), on PostgreSQL rows are locked by the statements.
"""

from __future__ import annotations

import math
import sqlite3
import time
from collections.abc import Iterator, Mapping, Sequence
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
from coordinator.db.sqlite import BUSY_MILLISECONDS, DRIVERS, prepare
from coordinator.errors import SettingsUnusable

Columns = TypeVarTuple("Columns")
Values = Mapping[str, object] | Sequence[Mapping[str, object]] | None

_SURE_SECONDS = 1.0
_LAST_USE = "last use"
_UNSAFE = text(
    "SELECT name FROM pg_settings WHERE setting = 'off'"
    " AND name IN ('fsync', 'full_page_writes', 'synchronous_commit')"
)
_CLOCK = text(f"SELECT {CLOCK_OF_POSTGRESQL}")


class Database:
    """One database behind one URL: short read transactions, and write transactions that commit on exit."""

    def __init__(self, url: str) -> None:
        self.url = _checked(url)
        self.is_sqlite = self.url.get_backend_name() == "sqlite"
        self._writing = self._engine("writing")
        self._says_begin = self.is_sqlite  # the driver is told not to begin transactions of its own
        # SQLite: BEGIN IMMEDIATE would make readers queue behind writers, so they get an engine of their own.
        # PostgreSQL: the same connections, but every statement of a transaction sees the same state.
        if self.is_sqlite:
            self._looking = self._reading = self._engine("reading")
        else:
            self._looking = self._writing.execution_options(isolation_level="AUTOCOMMIT")
            self._reading = self._writing.execution_options(
                isolation_level="REPEATABLE READ", postgresql_readonly=True
            )

    @property
    def engine(self) -> Engine:
        """The engine that writes; migrations use it."""
        return self._writing

    @contextmanager
    def read(self) -> Iterator[Session]:
        """Look at one consistent state; nothing written here stays."""
        with self._one_kind_of_error(), Session(self._reading, expire_on_commit=False) as session:
            if self._says_begin:
                sqlite_of(session).execute("BEGIN")
            yield session  # closing rolls back, and leaves the rows that were read readable

    @contextmanager
    def look(self) -> Iterator[Connection]:
        """Ask questions of which each sees its own state: no transaction is begun, and none is ended.

        It is for what every request asks; a session for it would cost more than the answer.
        """
        with self._one_kind_of_error(), self._looking.connect() as connection:
            yield connection

    @contextmanager
    def read_past_sessions(self) -> Iterator[Any]:
        """Give the driver's connection for a look at rows that never change.

        A session, made for nothing else, costs more than the piece of a payload that it fetches. On SQLite
        one consistent state is seen, on PostgreSQL each statement sees its own.
        """
        with self._one_kind_of_error():
            pooled = self._reading.raw_connection()
            try:
                driver: Any = pooled.driver_connection
                if self._says_begin:
                    driver.execute("BEGIN")
                yield driver
            finally:
                pooled.close()  # the pool rolls back

    @contextmanager
    def write(self) -> Iterator[Session]:
        """Change things; committed when the block ends, rolled back when it raises."""
        with (
            self._one_kind_of_error(),
            Session(self._writing, expire_on_commit=False) as session,
            session.begin(),
        ):
            yield session

    def close(self) -> None:
        """Close all connections."""
        self._writing.dispose()
        self._reading.dispose()

    @contextmanager
    def _one_kind_of_error(self) -> Iterator[None]:
        """Turn what the driver says of statements given to it alone into what SQLAlchemy says of all others.

        A full disk in the middle of an aggregation must look like one: the round waits, and is not given up.
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
                pool_size=20,
                max_overflow=20,
                hide_parameters=True,  # an error's text is logged, and among them are signatures
                connect_args={
                    "prepare_threshold": None,  # works behind a connection pooler
                    "connect_timeout": 10,
                    "options": f"-c statement_timeout=60000 -c lock_timeout={BUSY_MILLISECONDS}"
                    " -c idle_in_transaction_session_timeout=60000"
                    " -c synchronous_commit=on -c timezone=UTC",
                },
            )
            event.listen(engine, "checkin", _note_use)
            event.listen(engine, "checkout", partial(_ping_if_idle, engine.dialect))
            return engine
        path = self.url.set(drivername=DRIVERS[use])
        engine = create_engine(path, pool_size=20, max_overflow=20, hide_parameters=True)
        event.listen(engine, "connect", partial(prepare, use))
        return engine


@overload
def run(
    asked: Session | Connection, statement: TypedReturnsRows[*Columns], values: Values = ...
) -> CursorResult[*Columns]: ...


@overload
def run(
    asked: Session | Connection, statement: Executable, values: Values = ...
) -> CursorResult[*tuple[Any, ...]]: ...


def run(asked: Session | Connection, statement: Any, values: Values = None) -> Any:
    """Say a statement past the ORM, which takes longer to load a row than a database to find it.

    It is for statements that are made once and have parameters. Rows are tuples of columns, and what a
    session has not written yet is written before, as by the session's own `execute`.
    """
    if isinstance(asked, Session):
        asked.flush()
        asked = asked.connection()
    return asked.execute(statement, values)


def sqlite_of(session: Session) -> sqlite3.Connection:
    """Give the driver's connection of a session, inside its transaction: for what is said often or in bulk.

    Raises:
        TypeError: the database is not SQLite.
    """
    return _driver_of(session.connection())


def driver_of(session: Session) -> Any:
    """Give the driver's connection of a session, whichever database it is of, inside its transaction."""
    return session.connection().connection.driver_connection


def now(asked: Session | Connection) -> datetime:
    """Read the database's clock: replicas agree on it."""
    connection = asked.connection() if isinstance(asked, Session) else asked
    if connection.dialect.name == "sqlite":
        (moment,) = _driver_of(connection).execute(f"SELECT {CLOCK_OF_SQLITE}").fetchone()
        return datetime.fromisoformat(moment).replace(tzinfo=UTC)
    moment = connection.scalar(_CLOCK)
    if not isinstance(moment, datetime):
        raise TypeError("the database did not tell the time")
    return moment.astimezone(UTC)


def unsafe_settings(session: Session) -> list[str]:
    """Name the settings of a PostgreSQL server with which a commit may be lost when its machine fails."""
    if session.get_bind().dialect.name == "sqlite":
        return []
    return sorted(session.scalars(_UNSAFE))


def _checked(url: str) -> URL:
    try:
        parsed = make_url(url)
    except ArgumentError as error:
        raise SettingsUnusable(
            "TESSERA_DATABASE_URL is not a database URL, like sqlite:///tessera.db"
        ) from error
    if parsed.drivername == "postgresql":
        parsed = parsed.set(drivername="postgresql+psycopg")
    if parsed.drivername not in ("sqlite", "sqlite+pysqlite", "postgresql+psycopg"):
        raise SettingsUnusable(f"TESSERA_DATABASE_URL: {parsed.drivername} is neither sqlite nor postgresql")
    if parsed.get_backend_name() == "sqlite" and parsed.database in (None, "", ":memory:"):
        raise SettingsUnusable(
            "TESSERA_DATABASE_URL: SQLite needs a file, an in-memory database forgets rounds"
        )
    return parsed


def _note_use(_: DBAPIConnection | None, entry: ConnectionPoolEntry) -> None:
    entry.info[_LAST_USE] = time.monotonic()


def _ping_if_idle(
    dialect: Dialect, connection: DBAPIConnection, entry: ConnectionPoolEntry, _: PoolProxiedConnection
) -> None:
    """Make sure that a connection is alive, unless it was a moment ago: asking costs a round trip."""
    if time.monotonic() - entry.info.get(_LAST_USE, -math.inf) < _SURE_SECONDS:
        return
    try:
        dialect.do_ping(connection)
    except dialect.loaded_dbapi.Error as error:
        raise InvalidatePoolError from error  # the pool makes new connections


def _driver_of(connection: Connection) -> sqlite3.Connection:
    driver = connection.connection.driver_connection
    if not isinstance(driver, sqlite3.Connection):
        raise TypeError("not the standard SQLite driver")
    return driver
