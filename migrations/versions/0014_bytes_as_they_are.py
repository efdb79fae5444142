"""Have PostgreSQL keep pieces of payloads as they are: numbers that were trained hardly shrink.

It tries to compress whatever is longer than 2 kB, a fifth of its processor time while it takes updates; and
whoever reads a part of what it compressed waits until all before that part is decompressed.

Revision: 0014, after 0013.
"""

from __future__ import annotations

from alembic import op

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None


def upgrade() -> None:
    _store("EXTERNAL")


def downgrade() -> None:
    _store("EXTENDED")


def _store(how: str) -> None:
    """Say how pieces are kept that are written from now on."""
    if op.get_bind().dialect.name == "postgresql":
        op.execute(f"ALTER TABLE payload_chunks ALTER COLUMN data SET STORAGE {how}")
