from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from alembic import command
from sqlalchemy import inspect, text

from coordinator.db import migrate
from coordinator.db.engine import Database
from coordinator.db.tables.federations import Table
from coordinator.errors import SettingsUnusable
from coordinator.storage import payloads
from tests.scene.coordinator import Served, slug


@pytest.fixture
def empty(request: pytest.FixtureRequest, backend: str, tmp_path: Path) -> Iterator[Database]:
    """A database without any table."""
    if backend == "sqlite":
        database = Database(f"sqlite:///{tmp_path / 'empty.db'}")
    else:
        database = Database(request.getfixturevalue("empty_postgres_url"))
    yield database
    database.close()


def _tables(database: Database) -> set[str]:
    return set(inspect(database.engine).get_table_names())


def test_migrations_run_up_down_and_up_again(empty: Database) -> None:
    tables = set(Table.metadata.tables)
    assert not migrate.is_current(empty)
    migrate.upgrade(empty)
    assert migrate.is_current(empty)
    assert _tables(empty) == tables | {"alembic_version"}
    migrate.downgrade(empty)
    assert _tables(empty) == {"alembic_version"}
    migrate.upgrade(empty)
    assert _tables(empty) == tables | {"alembic_version"}


def test_migrations_match_the_table_definitions(empty: Database) -> None:
    migrate.upgrade(empty)
    with empty.engine.begin() as connection:
        command.check(migrate.config(connection=connection))


def test_a_repeated_migration_changes_nothing(database: Database) -> None:
    migrate.upgrade(database)
    assert migrate.is_current(database)


def test_prepare_migrates_sqlite_but_not_postgresql(database: Database, backend: str) -> None:
    migrate.downgrade(database)
    if backend == "sqlite":
        migrate.prepare(database)
        assert migrate.is_current(database)
    else:
        with pytest.raises(SettingsUnusable, match="tessera migrate"):
            migrate.prepare(database)


@pytest.mark.slow
def test_readiness_fails_without_current_tables(
    serve: Callable[..., Served], database_url: str, database: Database
) -> None:
    served = serve(database_url, tick_seconds=3600)
    assert served.http().get("/readyz").status_code == 200
    migrate.downgrade(database)
    unready = served.http().get("/readyz")
    assert (unready.status_code, slug(unready)) == (503, "unavailable")
    migrate.upgrade(database)
    assert served.http().get("/readyz").status_code == 200


def test_postgresql_stores_chunks_uncompressed(database: Database, backend: str) -> None:
    if backend == "sqlite":
        pytest.skip("SQLite compresses nothing")
    with database.write() as session:
        payload, _ = payloads.store_bytes(session, bytes(2**18))  # zeros: nothing shrinks more
        storage = session.scalar(
            text("SELECT sum(pg_column_size(data)) FROM payload_chunks WHERE payload_id = :payload"),
            {"payload": payload},
        )
    assert storage == 2**18
