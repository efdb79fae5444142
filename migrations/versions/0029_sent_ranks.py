"""Store how many ranks an update has values of, where clients choose among ranks.

Revision: 0029, after 0028. Going back deletes the counts, which are only shown.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0029"
down_revision = "0028"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("updates", sa.Column("sent_ranks", sa.Integer(), nullable=True))


def downgrade() -> None:
    op.drop_column("updates", "sent_ranks")
