"""Keep beside a round's relevance what the guard against poisoning made of it.

Revision: 0011, after 0010.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None

_COLUMNS = ("served", "agreement", "held")


def upgrade() -> None:
    with op.batch_alter_table("relevance") as table:
        for column in _COLUMNS:
            table.add_column(sa.Column(column, sa.LargeBinary(), nullable=True))


def downgrade() -> None:
    with op.batch_alter_table("relevance") as table:
        for column in _COLUMNS:
            table.drop_column(column)
