"""Restored copies of a database."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from coordinator.db.engine import Database
from tests.unit.coordinator.storage.copies import Restore, copy_rows


@pytest.fixture
def restore(fresh_database: Callable[[str], str], backend: str) -> Iterator[Restore]:
    """Return a function that restores a copy of the present database beside it."""
    opened: list[Database] = []

    def copy(database: Database) -> Database:
        opened.append(Database(fresh_database(backend)))
        copy_rows(database, opened[-1])
        return opened[-1]

    yield copy
    for database in opened:
        database.close()
