"""Store where a payload's bytes are, if not in rows.

Revision: 0026, after 0025. Going back is refused while payloads are in an object store.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from coordinator.errors import SettingsUnusable

revision = "0026"
down_revision = "0025"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("payloads", sa.Column("place", sa.String(), nullable=True))


def downgrade() -> None:
    moved = sa.text("SELECT count(*) FROM payloads WHERE place IS NOT NULL")
    if count := op.get_bind().execute(moved).scalar_one():
        raise SettingsUnusable(
            f"{count} payloads are in an object store; run `tessera payloads move --to rows` first"
        )
    op.drop_column("payloads", "place")
