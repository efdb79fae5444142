"""SQLite gives no payload's id twice, as PostgreSQL never did.

The table is written anew, which is small: it names payloads, their bytes are elsewhere.

Revision: 0009, after 0008.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from alembic.util import CommandError

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None


def upgrade() -> None:
    _rewrite(autoincrement=True)


def downgrade() -> None:
    _rewrite(autoincrement=False)


def _rewrite(*, autoincrement: bool) -> None:
    if op.get_bind().dialect.name != "sqlite":
        return
    if op.get_bind().scalar(sa.text("PRAGMA foreign_keys")):
        raise CommandError(
            "with foreign_keys on, dropping the old table would delete every chunk: run `tessera migrate`"
        )
    with op.batch_alter_table(
        "payloads", recreate="always", table_kwargs={"sqlite_autoincrement": autoincrement}
    ):
        pass
