"""One SQLite file in memory for all replicas, and the points where a replica may be interrupted.

Real durability is tested elsewhere: here every commit is whole, what is killed before it is rolled back, and
transactions follow each other. Others run between them, never inside one.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from functools import cache
from multiprocessing.util import Finalize
from pathlib import Path
from tempfile import mkdtemp
from typing import Any, Protocol

from sqlalchemy import Connection, event
from sqlalchemy.orm import Session

from coordinator.db import migrate
from coordinator.db.engine import Database, sqlite_of
from coordinator.storage import server_key
from tests.scene.coordinator import SIGNING_KEY

_PAGES = 2**30
_CHANGES, _CHANGES_WHEN_SIZED = slice(24, 28), slice(92, 96)  # https://www.sqlite.org/fileformat.html


class Host(Protocol):
    """The user of a database: interrupted at points, and notified of commits."""

    def point(self, label: str, *, inside: bool = False) -> None: ...

    def disk_is_full(self) -> bool: ...

    def committed(self) -> None: ...

    def database_time(self) -> float: ...


@cache
def workplace() -> Path:
    """A folder of this process in memory."""
    root = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    folder = Path(mkdtemp(prefix="tessera-simulation-", dir=root))
    # Unlike what atexit knows, this is done when a worker of a pool ends too.
    Finalize(None, shutil.rmtree, (folder,), {"ignore_errors": True}, exitpriority=1)
    return folder


@cache
def template() -> bytes:
    """The bytes of a migrated database that knows its coordinator and nothing else."""
    file = workplace() / "template.db"
    database = Database(f"sqlite:///{file}")
    migrate.upgrade(database)
    server_key.load(database, _signing_key())
    database.close()
    with closing(sqlite3.connect(file)) as connection:
        connection.execute("PRAGMA journal_mode=DELETE")  # a log of writes would outlive the file's contents
    return file.read_bytes()


@cache
def replicas_database(number: int) -> Watched:
    """The database as one replica sees it: made once, so that statements are compiled once."""
    return Watched(f"sqlite:///{workplace() / 'tessera.db'}")


def leave_workplace() -> None:
    """Move this forked process to a folder of its own."""
    workplace.cache_clear()
    replicas_database.cache_clear()


def begin_anew() -> None:
    """Replace the database of all replicas by an empty one.

    Their connections stay, and with them the statements that SQLite has compiled: the file changes as it does
    when another process writes, and its counter of changes says so.

    Raises:
        RuntimeError: something of the schedule before is still there.
    """
    for number in range(3):
        if replicas_database(number).is_in_use:
            raise RuntimeError("a transaction outlived its schedule")
    file = workplace() / "tessera.db"
    if file.with_name("tessera.db-wal").exists():
        raise RuntimeError("what the schedule before wrote lies beside the database")
    empty = bytearray(template())
    with file.open("r+b" if file.exists() else "w+b") as target:
        changes = int.from_bytes(target.read(_CHANGES.stop)[_CHANGES]) + 1
        for place in (_CHANGES, _CHANGES_WHEN_SIZED):
            empty[place] = changes.to_bytes(4)
        target.seek(0)
        target.write(empty)
        target.truncate()


def observer() -> sqlite3.Connection:
    """Open a connection that bypasses the service."""
    return sqlite3.connect(f"file:{workplace() / 'tessera.db'}?mode=ro", uri=True, isolation_level=None)


class Watched(Database):
    """The real database, with a host that is called at its points."""

    host: Host

    def __init__(self, url: str) -> None:
        super().__init__(url)
        for engine in (self._writing, self._reading):
            event.listen(engine, "connect", self._prepare)

    @property
    def is_in_use(self) -> bool:
        """Whether a connection is in use."""
        return any(engine.pool.checkedout() for engine in (self._writing, self._reading))

    @contextmanager
    def read(self) -> Iterator[Session]:
        """As ever, after others had their turn."""
        self.host.point("read")
        with super().read() as session:
            yield session

    @contextmanager
    def autocommit(self) -> Iterator[Connection]:
        """As ever, after others had their turn."""
        self.host.point("read")
        with super().autocommit() as connection:
            yield connection

    @contextmanager
    def driver_connection(self) -> Iterator[Any]:
        """As ever, after others had their turn."""
        self.host.point("read")
        with super().driver_connection() as driver:
            yield driver

    @contextmanager
    def write(self) -> Iterator[Session]:
        """As ever; others have their turns before it begins and after it is committed."""
        self.host.point("write")
        with super().write() as session:
            file, is_full = sqlite_of(session), self.host.disk_is_full()
            if is_full:
                file.execute("PRAGMA max_page_count = 1")  # no more than there are
            try:
                yield session
                session.flush()
            finally:
                if is_full:
                    file.execute(f"PRAGMA max_page_count = {_PAGES}")
            self.host.point("commit", inside=True)
        self.host.committed()
        self.host.point("committed")

    def _prepare(self, connection: sqlite3.Connection, _: object) -> None:
        connection.execute("PRAGMA journal_mode = MEMORY")
        connection.execute("PRAGMA synchronous = OFF")
        connection.create_function("strftime", 2, self._clock)

    def _clock(self, form: str, when: str) -> str:
        if (form, when) != ("%Y-%m-%dT%H:%M:%f", "now"):
            raise ValueError(f"the product asks the database for {form} of {when}")
        moment = datetime.fromtimestamp(self.host.database_time(), UTC)
        return moment.replace(tzinfo=None).isoformat(timespec="milliseconds")


def _signing_key() -> server_key.SecretStr:
    return server_key.SecretStr(SIGNING_KEY)
