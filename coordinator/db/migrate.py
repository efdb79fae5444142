"""Bring a database's tables to this version. The migrations travel with the package."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib.resources import files

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection

from coordinator.db.engine import Database
from coordinator.errors import SettingsUnusable
from coordinator.observability.logs import logger

log = logger(__name__)


def upgrade(database: Database, *, to: str = "head") -> None:
    """Apply the migrations that are missing, all or none of them."""
    with changing_tables(database) as connection:
        command.upgrade(config(connection=connection), to)
    log.info("database-migrated", to=to)


def downgrade(database: Database, *, to: str = "base") -> None:
    """Undo migrations, and what was kept in the tables they made."""
    with changing_tables(database) as connection:
        command.downgrade(config(connection=connection), to)


@contextmanager
def changing_tables(database: Database) -> Iterator[Connection]:
    """Give a connection in one transaction in which a table may be replaced by another of its name.

    Where SQLite minds references, dropping a table deletes the rows that refer to it. It does not meanwhile,
    and they are checked at the end.

    Raises:
        SettingsUnusable: a row refers to nothing; nothing was changed.
    """
    with database.engine.connect() as connection:
        driver = connection.connection.driver_connection
        if not isinstance(driver, sqlite3.Connection):
            with connection.begin():
                yield connection
            return
        driver.execute("PRAGMA foreign_keys=OFF")  # inside a transaction it would do nothing
        try:
            with connection.begin():
                yield connection
                broken = driver.execute("PRAGMA foreign_key_check").fetchone()
                if broken is not None:
                    raise SettingsUnusable(
                        f"a row of {broken[0]} refers to none of {broken[2]}: restore a backup"
                    )
        finally:
            driver.execute("PRAGMA foreign_keys=ON")


def is_current(database: Database) -> bool:
    """Say whether the database's tables are those of this version."""
    with database.read() as session:
        applied = MigrationContext.configure(session.connection()).get_current_heads()
    return tuple(applied) == _heads()


def prepare(database: Database) -> None:
    """Make sure that the service can start: SQLite is migrated on the way, PostgreSQL must have been.

    Raises:
        SettingsUnusable: the tables are not those of this version.
    """
    if is_current(database):
        return
    if not database.is_sqlite:
        raise SettingsUnusable("the database is not migrated to this version: run `tessera migrate` first")
    upgrade(database)


def config(**attributes: object) -> Config:
    """Point Alembic at the migrations of the installed package; `connection` is where to apply them."""
    config = Config(attributes=dict(attributes))
    config.set_main_option("script_location", str(files("migrations")).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    return config


@cache
def _heads() -> tuple[str, ...]:
    return tuple(ScriptDirectory.from_config(config()).get_heads())
