"""Keep every client's verdict on a pack, the packs that no longer count, and what a token's client may run.

Revision: 0015, after 0014. A verdict from before is its author's: it counts as one of that client's.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None

_PACKS = sa.table(
    "alignment_packs",
    sa.column("id", sa.Integer()),
    sa.column("acceptance", sa.JSON()),
    sa.column("verdicts", sa.JSON()),
)


def upgrade() -> None:
    with op.batch_alter_table("enrolment_tokens") as table:
        table.add_column(sa.Column("base_model", sa.String(length=200), nullable=True))
    with op.batch_alter_table("alignment_packs") as table:
        table.add_column(sa.Column("verdicts", sa.JSON(), nullable=True))
    op.create_table(
        "voided_packs",
        sa.Column("federation_id", sa.String(length=200), nullable=False),
        sa.Column("base_model", sa.String(length=200), nullable=False),
        sa.Column("digest", sa.String(length=200), nullable=False),
        sa.ForeignKeyConstraint(
            ["federation_id"], ["federations.id"], name=op.f("fk_voided_packs_federation_id_federations")
        ),
        sa.PrimaryKeyConstraint("federation_id", "base_model", "digest", name=op.f("pk_voided_packs")),
    )
    tested = sa.select(_PACKS.c.id, _PACKS.c.acceptance).where(_PACKS.c.acceptance.is_not(None))
    for pack_id, acceptance in op.get_bind().execute(tested).all():
        if acceptance and acceptance.get("tested_by") is not None:
            verdicts = {acceptance["tested_by"]: acceptance}
            op.get_bind().execute(sa.update(_PACKS).where(_PACKS.c.id == pack_id).values(verdicts=verdicts))


def downgrade() -> None:
    op.drop_table("voided_packs")
    with op.batch_alter_table("alignment_packs") as table:
        table.drop_column("verdicts")
    with op.batch_alter_table("enrolment_tokens") as table:
        table.drop_column("base_model")
