"""Migrate the database to the tables of this version, with the migrations in the package."""

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
    """Apply the missing migrations in one transaction."""
    with schema_transaction(database) as connection:
        command.upgrade(config(connection=connection), to)
    log.info("database-migrated", to=to)


def downgrade(database: Database, *, to: str = "base") -> None:
    """Revert migrations, and delete the data of their tables."""
    with schema_transaction(database) as connection:
        command.downgrade(config(connection=connection), to)


@contextmanager
def schema_transaction(database: Database) -> Iterator[Connection]:
    """Yield a connection in a transaction in which a table may be replaced by another of its name.

    SQLite's foreign keys are off meanwhile, since dropping a table would delete the rows that refer to it;
    they are checked at the end.

    Raises:
        SettingsUnusable: a reference is broken; nothing was changed.
    """
    with database.engine.connect() as connection:
        driver = connection.connection.driver_connection
        if not isinstance(driver, sqlite3.Connection):
            with connection.begin():
                yield connection
            return
        driver.execute("PRAGMA foreign_keys=OFF")  # inside a transaction it has no effect
        try:
            with connection.begin():
                yield connection
                broken = driver.execute("PRAGMA foreign_key_check").fetchone()
                if broken is not None:
                    raise SettingsUnusable(
                        f"a row of {broken[0]} refers to a missing row of {broken[2]}; restore a backup"
                    )
        finally:
            driver.execute("PRAGMA foreign_keys=ON")


def is_current(database: Database) -> bool:
    with database.read() as session:
        applied = MigrationContext.configure(session.connection()).get_current_heads()
    return tuple(applied) == _heads()


def prepare(database: Database) -> None:
    """Migrate SQLite if necessary; PostgreSQL must be migrated already.

    Raises:
        SettingsUnusable: the tables are not those of this version.
    """
    if is_current(database):
        return
    if not database.is_sqlite:
        raise SettingsUnusable("the database is not migrated to this version; run `tessera migrate`")
    upgrade(database)


def config(**attributes: object) -> Config:
    """Return Alembic's configuration for the package's migrations; `connection` is the target."""
    config = Config(attributes=dict(attributes))
    config.set_main_option("script_location", str(files("migrations")).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    return config


@cache
def _heads() -> tuple[str, ...]:
    return tuple(ScriptDirectory.from_config(config()).get_heads())
