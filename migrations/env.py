"""Run migrations on the connection that `coordinator.db.migrate` hands over, or on TESSERA_DATABASE_URL."""

from __future__ import annotations

from alembic import context
from sqlalchemy import Connection, text

import coordinator.db.tables.alignment
import coordinator.db.tables.experts
import coordinator.db.tables.identity
import coordinator.db.tables.secure_sum
import coordinator.db.tables.webhooks  # noqa: F401 - a table has to be imported to be known
from coordinator.db.engine import Database
from coordinator.db.migrate import schema_transaction
from coordinator.db.tables.federations import Table
from coordinator.settings import Settings

# Any number will do, as long as all replicas take the same one.
_LOCK = 0x7E55E2A


def run(connection: Connection) -> None:
    """Migrate inside one transaction; on PostgreSQL one process at a time."""
    if connection.dialect.name == "postgresql":
        # Migrations of much data, and waiting for another's, take longer than any request may.
        connection.execute(text("SET LOCAL lock_timeout = 0"))
        connection.execute(text("SET LOCAL statement_timeout = 0"))
        connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": _LOCK})
    context.configure(
        connection=connection,
        target_metadata=Table.metadata,
        render_as_batch=connection.dialect.name == "sqlite",
        transactional_ddl=True,
        compare_server_default=True,
    )
    context.run_migrations()


def main() -> None:
    """Find the connection."""
    passed = context.config.attributes.get("connection")
    if isinstance(passed, Connection):
        run(passed)
        return
    database = Database(Settings().database_url)
    try:
        with schema_transaction(database) as connection:
            run(connection)
    finally:
        database.close()


main()
