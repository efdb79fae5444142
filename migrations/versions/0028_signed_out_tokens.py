"""Store the ID tokens of people who signed out.

Revision: 0028, after 0026. Going back accepts those tokens again until they expire.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from coordinator.db.clock import UtcDateTime

revision = "0028"
down_revision = "0026"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "signed_out_tokens",
        sa.Column("digest", sa.String(length=200), nullable=False),
        sa.Column("expires_at", UtcDateTime(), nullable=False),
        sa.PrimaryKeyConstraint("digest", name=op.f("pk_signed_out_tokens")),
    )
    op.create_index(op.f("ix_signed_out_tokens_expires_at"), "signed_out_tokens", ["expires_at"])


def downgrade() -> None:
    op.drop_table("signed_out_tokens")
