"""What one transaction sees."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from sqlalchemy import func, select
from sqlalchemy.exc import DBAPIError

from coordinator.database import Database, now
from coordinator.tables import FederationRow


def test_on_postgresql_a_reader_sees_one_state_and_changes_nothing(
    fresh_database: Callable[[str], str], postgres: object
) -> None:
    database = Database(fresh_database("postgres"))
    counted = select(func.count()).select_from(FederationRow)

    def row(name: str) -> FederationRow:
        return FederationRow(id=name, name=name, state="open", plan={}, events=0, created_at=moment)

    with database.read() as session:
        moment = now(session)
        assert session.scalar(counted) == 0
        with database.write() as other:
            other.add(row("a"))
        assert session.scalar(counted) == 0
    with database.read() as session:
        assert session.scalar(counted) == 1
        session.add(row("b"))
        with pytest.raises(DBAPIError):
            session.flush()
    with database.write() as session:
        session.add(row("b"))
    with database.read() as session:
        assert session.scalar(counted) == 2
    database.close()
