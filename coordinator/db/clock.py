"""Times in the database: aware, in UTC, on every database; and its clock, on which replicas agree."""

from __future__ import annotations

from datetime import UTC, datetime

from sqlalchemy import DateTime, Dialect
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.functions import FunctionElement
from sqlalchemy.types import TypeDecorator

CLOCK_OF_POSTGRESQL = "clock_timestamp()"
CLOCK_OF_SQLITE = "strftime('%Y-%m-%dT%H:%M:%f', 'now')"


class UtcDateTime(TypeDecorator[datetime]):
    """An aware time in UTC on every database: SQLite forgets the zone."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """Refuse a naive time; store UTC."""
        if value is None:
            return None
        if value.tzinfo is None:
            raise ValueError("a naive time has no place in the database")
        return value.astimezone(UTC)

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """Give the zone back."""
        if value is None:
            return None
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


class clock(FunctionElement[datetime]):
    """The database's clock as a column of a statement: to ask for it alone would be a statement more."""

    type = UtcDateTime()
    inherit_cache = True


@compiles(clock, "postgresql")
def _clock_of_postgresql(*_: object, **__: object) -> str:
    return CLOCK_OF_POSTGRESQL


@compiles(clock, "sqlite")
def _clock_of_sqlite(*_: object, **__: object) -> str:
    return CLOCK_OF_SQLITE
