"""Count how often a client has replaced its scores of a round.

Revision: 0017, after 0016.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0017"
down_revision = "0016"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("scores", sa.Column("changes", sa.Integer(), nullable=False, server_default="0"))


def downgrade() -> None:
    op.drop_column("scores", "changes")
