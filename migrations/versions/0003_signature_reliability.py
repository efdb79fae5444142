"""Keep how reliable a signature is beside it.

Revision: 0003, after 0002.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    with op.batch_alter_table("signatures") as table:
        table.add_column(sa.Column("reliability", sa.Double(), nullable=False, server_default="1"))


def downgrade() -> None:
    with op.batch_alter_table("signatures") as table:
        table.drop_column("reliability")
