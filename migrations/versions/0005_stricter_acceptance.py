"""An acceptance test needs five pseudo-tasks and says its learning rate.

Those that have fewer, or do not say it, are forgotten: their packs are untested. So are, on the way back,
those that say it.

Revision: 0005, after 0004.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    _forget()


def downgrade() -> None:
    _forget()


def _forget() -> None:
    packs = sa.table("alignment_packs", sa.column("acceptance", sa.JSON(none_as_null=True)))
    op.execute(sa.update(packs).values(acceptance=None))
