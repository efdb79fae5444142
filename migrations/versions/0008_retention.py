"""Updates and weights of old rounds may be forgotten: their rows stay, without tensors.

Revision: 0008, after 0007.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from alembic.util import CommandError

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None

_COLUMNS = (("updates", "payload_id"), ("updates", "state_payload_id"), ("weights", "payload_id"))


def upgrade() -> None:
    for table, column in _COLUMNS:
        _alter(table, column, nullable=True)


def downgrade() -> None:
    for table, column in _COLUMNS:
        forgotten = op.get_bind().scalar(sa.text(f"SELECT count(*) FROM {table} WHERE {column} IS NULL"))
        if forgotten:
            raise CommandError(
                f"the tensors of {forgotten} {table} were forgotten (TESSERA_KEEP_ROUNDS), which the version"
                " before cannot read: go on with this version, or restore the backup from before the upgrade"
            )
    for table, column in _COLUMNS:
        _alter(table, column, nullable=False)


def _alter(table: str, column: str, *, nullable: bool) -> None:
    with op.batch_alter_table(table) as altered:
        altered.alter_column(column, existing_type=sa.Integer(), nullable=nullable)
