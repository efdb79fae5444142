"""What strategies fold into each base model, round by round.

Revision: 0012, after 0011.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from alembic.util import CommandError

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None

_KEY = ("federation_id", "base_model", "form", "round_number")


def upgrade() -> None:
    op.create_table(
        "folds",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("federation_id", sa.String(length=200), nullable=False),
        sa.Column("round_number", sa.Integer(), nullable=False),
        sa.Column("base_model", sa.String(length=200), nullable=False),
        sa.Column("form", sa.String(length=200), nullable=False),
        sa.Column("layout", sa.JSON(), nullable=False),
        sa.Column("payload_id", sa.Integer(), nullable=True),
        sa.ForeignKeyConstraint(
            ["federation_id"], ["federations.id"], name=op.f("fk_folds_federation_id_federations")
        ),
        sa.ForeignKeyConstraint(["payload_id"], ["payloads.id"], name=op.f("fk_folds_payload_id_payloads")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_folds")),
        sa.UniqueConstraint(*_KEY, name=op.f("uq_folds_federation_id_base_model_form_round_number")),
    )
    op.create_index(op.f("ix_folds_payload_id"), "folds", ["payload_id"])


def downgrade() -> None:
    kept = op.get_bind().scalar(sa.text("SELECT count(*) FROM folds WHERE payload_id IS NOT NULL"))
    if kept:
        raise CommandError(
            f"{kept} folds into base models would be lost, which clients cannot do without:"
            " go on with this version, or restore the backup from before the upgrade"
        )
    op.drop_table("folds")
