"""Clients with keys instead of credentials, the server's own key, and what was signed and received.

Revision: 0006, after 0005.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from alembic.util import CommandError

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None

_TIME = sa.DateTime(timezone=True)


def upgrade() -> None:
    with op.batch_alter_table("enrolment_tokens") as tokens:
        tokens.add_column(sa.Column("cidr", sa.String(length=200), nullable=True))
    op.create_table(
        "client_keys",
        sa.Column("public_key", sa.String(length=200), nullable=False),
        sa.Column("client_id", sa.String(length=200), nullable=False),
        sa.Column("created_at", _TIME, nullable=False),
        sa.Column("expires_at", _TIME, nullable=True),
        sa.ForeignKeyConstraint(["client_id"], ["clients.id"], name=op.f("fk_client_keys_client_id_clients")),
        sa.PrimaryKeyConstraint("public_key", name=op.f("pk_client_keys")),
    )
    op.create_index(op.f("ix_client_keys_client_id"), "client_keys", ["client_id"])
    op.create_table(
        "used_nonces",
        sa.Column("public_key", sa.String(length=200), nullable=False),
        sa.Column("nonce", sa.String(length=200), nullable=False),
        sa.Column("used_at", _TIME, nullable=False),
        sa.PrimaryKeyConstraint("public_key", "nonce", name=op.f("pk_used_nonces")),
    )
    op.create_index(op.f("ix_used_nonces_used_at"), "used_nonces", ["used_at"])
    op.create_table(
        "server_identity",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("public_key", sa.String(length=200), nullable=False),
        sa.Column("created_at", _TIME, nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_server_identity")),
    )
    _create_chains()


def _create_chains() -> None:
    op.create_table(
        "roster",
        sa.Column("federation_id", sa.String(length=200), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("client_id", sa.String(length=200), nullable=False),
        sa.Column("at", _TIME, nullable=False),
        sa.Column("document", sa.JSON(), nullable=False),
        sa.Column("hash", sa.String(length=200), nullable=False),
        sa.ForeignKeyConstraint(
            ["federation_id"], ["federations.id"], name=op.f("fk_roster_federation_id_federations")
        ),
        sa.ForeignKeyConstraint(["client_id"], ["clients.id"], name=op.f("fk_roster_client_id_clients")),
        sa.PrimaryKeyConstraint("federation_id", "version", name=op.f("pk_roster")),
    )
    op.create_table(
        "round_manifests",
        sa.Column("client_id", sa.String(length=200), nullable=False),
        sa.Column("round_number", sa.Integer(), nullable=False),
        sa.Column("document", sa.JSON(), nullable=False),
        sa.Column("hash", sa.String(length=200), nullable=False),
        sa.ForeignKeyConstraint(
            ["client_id"], ["clients.id"], name=op.f("fk_round_manifests_client_id_clients")
        ),
        sa.PrimaryKeyConstraint("client_id", "round_number", name=op.f("pk_round_manifests")),
    )
    op.create_table(
        "audit",
        sa.Column("number", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("document", sa.JSON(), nullable=False),
        sa.Column("hash", sa.String(length=200), nullable=False),
        sa.PrimaryKeyConstraint("number", name=op.f("pk_audit")),
    )


def downgrade() -> None:
    signing = op.get_bind().scalar(sa.text("SELECT count(*) FROM client_keys"))
    if signing:
        raise CommandError(
            f"{signing} keys of clients sign requests, which the version before cannot check:"
            " go on with this version, or restore the backup from before the upgrade"
        )
    op.drop_table("audit")
    op.drop_table("round_manifests")
    op.drop_table("roster")
    op.drop_table("server_identity")
    op.drop_table("used_nonces")
    op.drop_table("client_keys")
    with op.batch_alter_table("enrolment_tokens") as tokens:
        tokens.drop_column("cidr")
