"""Migrate the database to the tables of this version, with the migrations in the package."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from importlib.resources import files

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, inspect

from coordinator.db.engine import Database
from coordinator.errors import SettingsUnusable
from coordinator.observability.logs import logger

_VERSIONS = "alembic_version"
_A_TABLE = "federations"

log = logger(__name__)


def upgrade(database: Database, *, to: str = "head") -> None:
    """Apply the missing migrations in one transaction.

    Raises:
        SettingsUnusable: the database is another program's, or that of another version.
    """
    require_known(database)
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
    return _applied(database) == _heads()


def require_known(database: Database) -> None:
    """Check that the tables, if there are any, are those of this version or an earlier one.

    Raises:
        SettingsUnusable: they are another program's, or those of another version.
    """
    with database.read() as session:
        connection = session.connection()
        applied = MigrationContext.configure(connection).get_current_heads()
        tables = set(inspect(connection).get_table_names()) - {_VERSIONS}
    shown = database.url.render_as_string()
    unknown = _unknown(applied)
    if unknown and _A_TABLE in tables:
        raise SettingsUnusable(
            f"TESSERA_DATABASE_URL: {shown} was migrated by another version of Tessera, to {unknown[-1]}; "
            f"this version knows migrations up to {_heads()[0]}. Install that version, or restore a backup "
            "from before its migration; databases of development versions before 0.2.0 are not upgraded"
        )
    # PostgreSQL databases may have tables of extensions; a name that is taken there ends the migration.
    if unknown or (database.is_sqlite and tables and not applied):
        names = ", ".join(sorted(tables)[:3])
        raise SettingsUnusable(
            f"TESSERA_DATABASE_URL: {shown} is the database of another program (tables: {names}); name a new "
            "file or an empty database"
        )


def outdated(database: Database) -> str:
    """Return why the tables are not those of this version, without the address of the database."""
    if _unknown(_applied(database)):
        return "the database was migrated by another version of Tessera; install that version"
    return "the database is not migrated to this version; run `tessera migrate`"


def prepare(database: Database) -> None:
    """Migrate SQLite if necessary; PostgreSQL must be migrated already.

    Raises:
        SettingsUnusable: the tables are not those of this version, or another program's.
    """
    if is_current(database):
        return
    require_known(database)
    if not database.is_sqlite:
        raise SettingsUnusable(outdated(database))
    upgrade(database)


def config(**attributes: object) -> Config:
    """Return Alembic's configuration for the package's migrations; `connection` is the target."""
    config = Config(attributes=dict(attributes))
    # The configuration interpolates percent signs.
    config.set_main_option("script_location", str(files("migrations")).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    return config


def _applied(database: Database) -> tuple[str, ...]:
    with database.read() as session:
        return MigrationContext.configure(session.connection()).get_current_heads()


def _unknown(applied: Iterable[str]) -> list[str]:
    """Return the applied migrations that this version does not have."""
    return sorted(set(applied) - {script.revision for script in _scripts().walk_revisions()})


@cache
def _heads() -> tuple[str, ...]:
    return tuple(_scripts().get_heads())


@cache
def _scripts() -> ScriptDirectory:
    return ScriptDirectory.from_config(config())
