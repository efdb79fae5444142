"""Refuse a second service on one SQLite file: its clock, its locks and its ticker are made for one."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager

from coordinator.database import Database
from coordinator.errors import SettingsUnusable


@contextmanager
def only_replica(database: Database) -> Iterator[None]:
    """Hold a lock beside an SQLite file while serving; the operating system frees it when a process dies.

    Raises:
        SettingsUnusable: another process serves this file.
    """
    if not database.is_sqlite:
        yield
        return
    with open(f"{database.url.database}-serving", "w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise SettingsUnusable(
                f"another process serves {database.url.database}; several replicas need PostgreSQL"
            ) from error
        yield
