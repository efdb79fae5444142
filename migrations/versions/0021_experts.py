"""Store the experts of a bank, their revisions, and what each summed round has changed.

Revision: 0021, after 0020. Going back is refused while there are experts: they would be lost.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from alembic.util import CommandError

revision = "0021"
down_revision = "0020"
branch_labels = None
depends_on = None

_EXPERTS = sa.table("experts", sa.column("expert", sa.Integer()))


def upgrade() -> None:
    op.create_table(
        "experts",
        sa.Column("federation_id", sa.String(length=200), nullable=False),
        sa.Column("expert", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("status", sa.String(length=200), nullable=False),
        sa.Column("born", sa.Integer(), nullable=False),
        sa.Column("grace_until", sa.Integer(), nullable=False),
        sa.Column("prior", sa.Double(), nullable=False),
        sa.Column("utilisation", sa.Double(), nullable=True),
        sa.Column("strikes", sa.Integer(), nullable=False),
        sa.Column("parent", sa.Integer(), nullable=True),
        sa.Column("merged_into", sa.Integer(), nullable=True),
        sa.Column("ended", sa.Integer(), nullable=True),
        sa.ForeignKeyConstraint(
            ["federation_id"], ["federations.id"], name=op.f("fk_experts_federation_id_federations")
        ),
        sa.PrimaryKeyConstraint("federation_id", "expert", name=op.f("pk_experts")),
    )
    op.create_table(
        "expert_revisions",
        sa.Column("federation_id", sa.String(length=200), nullable=False),
        sa.Column("expert", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("round_number", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("payload_id", sa.Integer(), nullable=True),
        sa.Column("digest", sa.String(length=200), nullable=False),
        sa.Column("bytes", sa.Integer(), nullable=False),
        sa.Column("contributors", sa.Integer(), nullable=False),
        sa.ForeignKeyConstraint(
            ["federation_id", "expert"],
            ["experts.federation_id", "experts.expert"],
            name=op.f("fk_expert_revisions_federation_id_expert_experts"),
        ),
        sa.ForeignKeyConstraint(
            ["payload_id"], ["payloads.id"], name=op.f("fk_expert_revisions_payload_id_payloads")
        ),
        sa.PrimaryKeyConstraint("federation_id", "expert", "round_number", name=op.f("pk_expert_revisions")),
    )
    op.create_index(op.f("ix_expert_revisions_payload_id"), "expert_revisions", ["payload_id"])
    op.create_table(
        "bank_rounds",
        sa.Column("federation_id", sa.String(length=200), nullable=False),
        sa.Column("round_number", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("sums", sa.JSON(), nullable=False),
        sa.Column("events", sa.JSON(), nullable=False),
        sa.Column("memory", sa.JSON(), nullable=False),
        sa.ForeignKeyConstraint(
            ["federation_id"], ["federations.id"], name=op.f("fk_bank_rounds_federation_id_federations")
        ),
        sa.PrimaryKeyConstraint("federation_id", "round_number", name=op.f("pk_bank_rounds")),
    )


def downgrade() -> None:
    experts = op.get_bind().execute(sa.select(sa.func.count()).select_from(_EXPERTS)).scalar()
    if experts:
        raise CommandError(
            f"{experts} experts would be lost: go on with this version, or restore the backup from before the"
            " upgrade"
        )
    for name in ("bank_rounds", "expert_revisions", "experts"):
        op.drop_table(name)
