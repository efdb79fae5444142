"""Aware UTC times on every database, and the database's clock, on which replicas agree."""

from __future__ import annotations

from datetime import UTC, datetime

from sqlalchemy import DateTime, Dialect
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.functions import FunctionElement
from sqlalchemy.types import TypeDecorator

CLOCK_OF_POSTGRESQL = "clock_timestamp()"
CLOCK_OF_SQLITE = "strftime('%Y-%m-%dT%H:%M:%f', 'now')"


class UtcDateTime(TypeDecorator[datetime]):
    """An aware UTC time on every database: SQLite drops the zone."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """Convert to UTC; refuse a naive time."""
        if value is None:
            return None
        if value.tzinfo is None:
            raise ValueError("a naive time cannot be stored; pass an aware one")
        return value.astimezone(UTC)

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        if value is None:
            return None
        # SQLite returns the times without their zone; they were stored in UTC.
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


class clock(FunctionElement[datetime]):
    """The database's clock as a column, which saves a statement of its own."""

    type = UtcDateTime()
    inherit_cache = True


@compiles(clock, "postgresql")
def _clock_of_postgresql(*_: object, **__: object) -> str:
    return CLOCK_OF_POSTGRESQL


@compiles(clock, "sqlite")
def _clock_of_sqlite(*_: object, **__: object) -> str:
    return CLOCK_OF_SQLITE
