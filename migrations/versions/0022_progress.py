"""Store what clients report of their training inside open rounds.

Revision: 0022, after 0021. Going back deletes the reports, which are of open rounds only.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from coordinator.db.clock import UtcDateTime

revision = "0022"
down_revision = "0021"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "progress",
        sa.Column("round_id", sa.Integer(), nullable=False),
        sa.Column("client_id", sa.String(length=200), nullable=False),
        sa.Column("report", sa.JSON(), nullable=False),
        sa.Column("reported_at", UtcDateTime(), nullable=False),
        sa.ForeignKeyConstraint(["client_id"], ["clients.id"], name=op.f("fk_progress_client_id_clients")),
        sa.ForeignKeyConstraint(["round_id"], ["rounds.id"], name=op.f("fk_progress_round_id_rounds")),
        sa.PrimaryKeyConstraint("round_id", "client_id", name=op.f("pk_progress")),
    )


def downgrade() -> None:
    op.drop_table("progress")
