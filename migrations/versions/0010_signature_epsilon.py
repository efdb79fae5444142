"""Keep what a client has spent of its privacy budget beside its signature.

Revision: 0010, after 0009.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None


def upgrade() -> None:
    with op.batch_alter_table("signatures") as table:
        table.add_column(sa.Column("epsilon", sa.Double(), nullable=True))


def downgrade() -> None:
    with op.batch_alter_table("signatures") as table:
        table.drop_column("epsilon")
