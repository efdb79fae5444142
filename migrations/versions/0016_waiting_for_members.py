"""Keep beside a client's part in a round whether the round stays open for it.

Revision: 0016, after 0015.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0016"
down_revision = "0015"
branch_labels = None
depends_on = None


def upgrade() -> None:
    with op.batch_alter_table("participations") as table:
        table.add_column(sa.Column("is_waited_for", sa.Boolean(), nullable=False, server_default=sa.true()))


def downgrade() -> None:
    with op.batch_alter_table("participations") as table:
        table.drop_column("is_waited_for")
