"""Databases read past the service."""

from __future__ import annotations

from typing import Any

from sqlalchemy import create_engine, func, select, text

from coordinator.db.engine import Database
from coordinator.db.tables.federations import PayloadRow


def row_count(database: Database, table: Any) -> int:
    """Count the rows of a table."""
    with database.read() as session:
        return session.scalar(select(func.count()).select_from(table)) or 0


def payload_ids(database: Database) -> set[int | None]:
    """Return the ids of all payloads."""
    with database.read() as session:
        return set(session.scalars(select(PayloadRow.id)))


def ask(url: str, query: str) -> list[tuple[Any, ...]]:
    """Return the rows of a query."""
    engine = create_engine(url)
    try:
        with engine.connect() as connection:
            return [tuple(row) for row in connection.execute(text(query))]
    finally:
        engine.dispose()
