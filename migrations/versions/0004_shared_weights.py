"""Weights whose values several clients share: each row has a head of its own.

Rows from before have none: their payload is the whole body.

Revision: 0004, after 0003.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from alembic.util import CommandError

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    with op.batch_alter_table("weights") as weights:
        weights.add_column(sa.Column("head", sa.LargeBinary(), nullable=True))
        weights.add_column(sa.Column("begin", sa.BigInteger(), server_default="0", nullable=False))


def downgrade() -> None:
    shared = op.get_bind().scalar(sa.text("SELECT count(*) FROM weights WHERE head IS NOT NULL"))
    if shared:
        raise CommandError(
            f"{shared} published weights share their values, which the version before cannot serve:"
            " go on with this version, or restore the backup from before the upgrade"
        )
    with op.batch_alter_table("weights") as weights:
        weights.drop_column("begin")
        weights.drop_column("head")
