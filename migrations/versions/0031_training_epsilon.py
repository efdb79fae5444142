"""Store what an update reports of the privacy cost of its client's training.

Revision: 0031, after 0030. Going back deletes the costs, which are only shown.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0031"
down_revision = "0030"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("updates", sa.Column("training_epsilon", sa.Double(), nullable=True))


def downgrade() -> None:
    op.drop_column("updates", "training_epsilon")
