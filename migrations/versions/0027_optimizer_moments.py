"""Store the moments of optimisers that move the common weights of a federation.

Revision: 0027, after 0026. Going back is refused while there are moments: they would be lost.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from alembic.util import CommandError

revision = "0027"
down_revision = "0026"
branch_labels = None
depends_on = None

_MOMENTS = sa.table("optimizer_moments", sa.column("federation_id", sa.String()))


def upgrade() -> None:
    op.create_table(
        "optimizer_moments",
        sa.Column("federation_id", sa.String(length=200), nullable=False),
        sa.Column("base_model", sa.String(length=200), nullable=False),
        sa.Column("form", sa.String(length=200), nullable=False),
        sa.Column("round_number", sa.Integer(), nullable=False),
        sa.Column("payload_id", sa.Integer(), nullable=False),
        sa.ForeignKeyConstraint(
            ["federation_id"], ["federations.id"], name=op.f("fk_optimizer_moments_federation_id_federations")
        ),
        sa.ForeignKeyConstraint(
            ["payload_id"], ["payloads.id"], name=op.f("fk_optimizer_moments_payload_id_payloads")
        ),
        sa.PrimaryKeyConstraint("federation_id", "base_model", "form", name=op.f("pk_optimizer_moments")),
    )
    op.create_index(op.f("ix_optimizer_moments_payload_id"), "optimizer_moments", ["payload_id"])


def downgrade() -> None:
    stored = op.get_bind().execute(sa.select(sa.func.count()).select_from(_MOMENTS)).scalar()
    if stored:
        raise CommandError(
            f"the optimisers of running federations have {stored} moments that would be lost: finish those "
            "federations first, or go on with this version"
        )
    op.drop_table("optimizer_moments")
