"""Without the number of ranks that an update has values of: clients no longer choose ranks.

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
    op.drop_column("updates", "sent_ranks")


def downgrade() -> None:
    op.add_column("updates", sa.Column("sent_ranks", sa.Integer(), nullable=True))
