"""Store the sessions of the secure sum, and the model that all clients have in common after each round.

Revision: 0019, after 0018. Going back is refused while a federation sums its updates: an earlier version
would ask its clients for them one by one.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from alembic.util import CommandError

from coordinator.db.clock import UtcDateTime

revision = "0019"
down_revision = "0018"
branch_labels = None
depends_on = None

_FEDERATIONS = sa.table("federations", sa.column("id", sa.String()), sa.column("plan", sa.JSON()))


def upgrade() -> None:
    with op.batch_alter_table("federations") as table:
        table.add_column(sa.Column("sum_phase", sa.Integer(), server_default="0", nullable=False))
    with op.batch_alter_table("rounds") as table:
        table.add_column(sa.Column("summing_at", UtcDateTime(), nullable=True))
    with op.batch_alter_table("participations") as table:
        table.add_column(sa.Column("ready_at", UtcDateTime(), nullable=True))
    _create_sessions()
    _create_members()
    _create_messages()
    op.create_table(
        "joint_models",
        sa.Column("federation_id", sa.String(length=200), nullable=False),
        sa.Column("round_number", sa.Integer(), nullable=False),
        sa.Column("layout", sa.JSON(), nullable=False),
        sa.Column("digest", sa.String(length=200), nullable=False),
        sa.Column("payload_id", sa.Integer(), nullable=True),
        sa.Column("losses", sa.JSON(), nullable=False),
        sa.Column("is_void", sa.Boolean(), nullable=False),
        sa.ForeignKeyConstraint(
            ["federation_id"], ["federations.id"], name=op.f("fk_joint_models_federation_id_federations")
        ),
        sa.ForeignKeyConstraint(
            ["payload_id"], ["payloads.id"], name=op.f("fk_joint_models_payload_id_payloads")
        ),
        sa.PrimaryKeyConstraint("federation_id", "round_number", name=op.f("pk_joint_models")),
    )
    op.create_index(op.f("ix_joint_models_payload_id"), "joint_models", ["payload_id"])


def _create_sessions() -> None:
    op.create_table(
        "sum_sessions",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("round_id", sa.Integer(), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("kind", sa.String(length=200), nullable=False),
        sa.Column("state", sa.String(length=200), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("terms", sa.JSON(), nullable=False),
        sa.Column("terms_hash", sa.String(length=200), nullable=False),
        sa.Column("phase_opened_at", UtcDateTime(), nullable=False),
        sa.Column("closed", sa.JSON(), nullable=False),
        sa.Column("lease_token", sa.String(length=200), nullable=True),
        sa.Column("lease_expires_at", UtcDateTime(), nullable=True),
        sa.Column("total_payload_id", sa.Integer(), nullable=True),
        sa.Column("reason", sa.String(length=200), nullable=True),
        sa.Column("opened_at", UtcDateTime(), nullable=False),
        sa.Column("ended_at", UtcDateTime(), nullable=True),
        sa.ForeignKeyConstraint(["round_id"], ["rounds.id"], name=op.f("fk_sum_sessions_round_id_rounds")),
        sa.ForeignKeyConstraint(
            ["total_payload_id"], ["payloads.id"], name=op.f("fk_sum_sessions_total_payload_id_payloads")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_sum_sessions")),
        sa.UniqueConstraint("round_id", "number", name=op.f("uq_sum_sessions_round_id_number")),
    )
    op.create_index(op.f("ix_sum_sessions_state"), "sum_sessions", ["state"])
    op.create_index(op.f("ix_sum_sessions_total_payload_id"), "sum_sessions", ["total_payload_id"])


def _create_members() -> None:
    op.create_table(
        "sum_members",
        sa.Column("session_id", sa.Integer(), nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("client_id", sa.String(length=200), nullable=False),
        sa.Column("spent", sa.Boolean(), nullable=False),
        sa.ForeignKeyConstraint(
            ["session_id"], ["sum_sessions.id"], name=op.f("fk_sum_members_session_id_sum_sessions")
        ),
        sa.ForeignKeyConstraint(["client_id"], ["clients.id"], name=op.f("fk_sum_members_client_id_clients")),
        sa.PrimaryKeyConstraint("session_id", "position", name=op.f("pk_sum_members")),
        sa.UniqueConstraint("session_id", "client_id", name=op.f("uq_sum_members_session_id_client_id")),
    )


def _create_messages() -> None:
    op.create_table(
        "sum_messages",
        sa.Column("session_id", sa.Integer(), nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("step", sa.String(length=200), nullable=False),
        sa.Column("digest", sa.String(length=200), nullable=False),
        sa.Column("body", sa.LargeBinary(), nullable=True),
        sa.Column("payload_id", sa.Integer(), nullable=True),
        sa.Column("received_at", UtcDateTime(), nullable=False),
        sa.ForeignKeyConstraint(
            ["session_id"], ["sum_sessions.id"], name=op.f("fk_sum_messages_session_id_sum_sessions")
        ),
        sa.ForeignKeyConstraint(
            ["payload_id"], ["payloads.id"], name=op.f("fk_sum_messages_payload_id_payloads")
        ),
        sa.PrimaryKeyConstraint("session_id", "position", "step", name=op.f("pk_sum_messages")),
    )
    op.create_index(op.f("ix_sum_messages_payload_id"), "sum_messages", ["payload_id"])


def downgrade() -> None:
    plans = op.get_bind().execute(sa.select(_FEDERATIONS.c.id, _FEDERATIONS.c.plan)).all()
    summing = sum(1 for _, plan in plans if plan.get("privacy", {}).get("secure_sum"))
    if summing:
        raise CommandError(
            f"{summing} federations sum their updates, and an earlier version would receive them in clear:"
            " go on with this version, or restore the backup from before the upgrade"
        )
    for name in ("joint_models", "sum_messages", "sum_members", "sum_sessions"):
        op.drop_table(name)
    with op.batch_alter_table("participations") as table:
        table.drop_column("ready_at")
    with op.batch_alter_table("rounds") as table:
        table.drop_column("summing_at")
    with op.batch_alter_table("federations") as table:
        table.drop_column("sum_phase")
