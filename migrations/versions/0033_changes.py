"""Store the comparisons of what clients changed in their rounds, to which the next round adds its own.

Revision: 0033, after 0032. Federations that run begin to compare in their next round.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0033"
down_revision = "0032"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("relevance", sa.Column("changes", sa.LargeBinary(), nullable=True))


def downgrade() -> None:
    op.drop_column("relevance", "changes")
