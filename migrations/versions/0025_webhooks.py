"""Store messages for the webhook in the transaction of what they report.

Revision: 0025, after 0022. Going back deletes the messages, delivered or not.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from coordinator.db.clock import UtcDateTime

revision = "0025"
down_revision = "0022"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "webhook_messages",
        sa.Column("id", sa.String(length=200), nullable=False),
        sa.Column("federation_id", sa.String(length=200), nullable=False),
        sa.Column("kind", sa.String(length=200), nullable=False),
        sa.Column("data", sa.JSON(), nullable=False),
        sa.Column("created_at", UtcDateTime(), nullable=False),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("due_at", UtcDateTime(), nullable=False),
        sa.Column("delivered_at", UtcDateTime(), nullable=True),
        sa.ForeignKeyConstraint(
            ["federation_id"], ["federations.id"], name=op.f("fk_webhook_messages_federation_id_federations")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_webhook_messages")),
    )
    for column in ("federation_id", "created_at", "due_at"):
        op.create_index(op.f(f"ix_webhook_messages_{column}"), "webhook_messages", [column])


def downgrade() -> None:
    op.drop_table("webhook_messages")
