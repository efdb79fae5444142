"""The acceptance test of an alignment pack.

Revision: 0002, after 0001.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    with op.batch_alter_table("alignment_packs") as packs:
        packs.add_column(sa.Column("acceptance", sa.JSON(none_as_null=True), nullable=True))


def downgrade() -> None:
    with op.batch_alter_table("alignment_packs") as packs:
        packs.drop_column("acceptance")
