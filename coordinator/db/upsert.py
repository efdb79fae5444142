"""Insert rows unless their key exists, and delete old rows in bounded batches."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from functools import cache
from typing import Any

from sqlalchemy import Executable, bindparam, delete, inspect, select, tuple_
from sqlalchemy.dialects.postgresql import insert as postgres_insert
from sqlalchemy.dialects.sqlite import insert as sqlite_insert
from sqlalchemy.orm import InstrumentedAttribute, Session

from coordinator.db.engine import run
from coordinator.db.tables.federations import Table

# More than the rows that a request adds, so that no table can grow without bound.
_BATCH = 100


def insert_new(session: Session, table: type[Table], values: dict[str, Any]) -> bool:
    """Insert a row; return False if its key exists."""
    statement = _insertion(table, session.get_bind().dialect.name == "sqlite")
    return run(session, statement, values).first() is not None


def insert_all_new(
    session: Session, table: type[Table], rows: Sequence[dict[str, Any]]
) -> set[tuple[object, ...]]:
    """Insert rows unless their keys exist; return the primary keys of those that were inserted."""
    if not rows:
        return set()
    statement = _insertion(table, session.get_bind().dialect.name == "sqlite")
    return {tuple(row) for row in run(session, statement, rows)}


def delete_before(session: Session, column: InstrumentedAttribute[datetime], until: datetime) -> int:
    """Delete a batch of rows whose column is at or before `until`; return their number."""
    keys = [tuple(row) for row in run(session, _old(column), {"until": until})]
    if keys:
        table = column.class_
        session.execute(delete(table).where(tuple_(*inspect(table).primary_key).in_(keys)))
    return len(keys)


@cache
def _insertion(table: type[Table], is_sqlite: bool) -> Executable:
    insert = sqlite_insert if is_sqlite else postgres_insert
    return insert(table).on_conflict_do_nothing().returning(*inspect(table).primary_key)


@cache
def _old(column: InstrumentedAttribute[datetime]) -> Executable:
    key = inspect(column.class_).primary_key
    # Rows that another transaction is deleting are skipped: waiting could deadlock.
    rows = select(*key).where(column <= bindparam("until")).limit(_BATCH)
    return rows.with_for_update(skip_locked=True)
