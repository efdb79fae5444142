"""Store the tokens by which a database owns its folder in an object store.

Revision: 0030, after 0029. Going back deletes the tokens: back here, `tessera payloads take-over` claims a
store in use.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from coordinator.db.clock import UtcDateTime

revision = "0030"
down_revision = "0029"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "payload_stores",
        sa.Column("base", sa.String(), nullable=False),
        sa.Column("token", sa.String(), nullable=False),
        sa.Column("previous", sa.String(), nullable=True),
        sa.Column("renewed_at", UtcDateTime(), nullable=False),
        sa.Column("owned_since", UtcDateTime(), nullable=False),
        sa.PrimaryKeyConstraint("base", name=op.f("pk_payload_stores")),
    )


def downgrade() -> None:
    op.drop_table("payload_stores")
