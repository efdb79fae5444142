"""Store the digests of the pieces of payloads in an object store, which are compared when they are read.

Revision: 0032, after 0031. Payloads that were moved before have none until the coordinator has read their
objects once.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0032"
down_revision = "0031"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("payloads", sa.Column("piece_digests", sa.LargeBinary(), nullable=True))


def downgrade() -> None:
    op.drop_column("payloads", "piece_digests")
