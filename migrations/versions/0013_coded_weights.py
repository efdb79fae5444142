"""Keep the weights that clients asked for in a recipe, so that they are written once.

Revision: 0013, after 0012.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "coded_weights",
        sa.Column("federation_id", sa.String(length=200), nullable=False),
        sa.Column("client_id", sa.String(length=200), nullable=False),
        sa.Column("round_number", sa.Integer(), nullable=False),
        sa.Column("recipe", sa.String(length=200), nullable=False),
        sa.Column("payload_id", sa.Integer(), nullable=True),
        sa.ForeignKeyConstraint(
            ["federation_id"], ["federations.id"], name=op.f("fk_coded_weights_federation_id_federations")
        ),
        sa.ForeignKeyConstraint(
            ["client_id"], ["clients.id"], name=op.f("fk_coded_weights_client_id_clients")
        ),
        sa.ForeignKeyConstraint(
            ["payload_id"], ["payloads.id"], name=op.f("fk_coded_weights_payload_id_payloads")
        ),
        sa.PrimaryKeyConstraint(
            "federation_id", "client_id", "round_number", "recipe", name=op.f("pk_coded_weights")
        ),
    )
    op.create_index(op.f("ix_coded_weights_payload_id"), "coded_weights", ["payload_id"])


def downgrade() -> None:
    op.drop_table("coded_weights")
