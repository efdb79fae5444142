"""Baseline: all tables of version 0.2.0.

Names of keys, indexes and constraints follow the naming convention of `coordinator.db.tables.federations`.

Revision: 0001, the first.
"""

from __future__ import annotations

from functools import partial

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

TEXT = sa.String(length=200)
TIME = sa.DateTime(timezone=True)
BYTES = sa.LargeBinary()

required = partial(sa.Column, nullable=False)
optional = partial(sa.Column, nullable=True)

TABLES = (
    "federations",
    "person_tokens",
    "clients",
    "enrolment_tokens",
    "client_keys",
    "name_keys",
    "server_identity",
    "audit",
    "used_nonces",
    "failed_enrolments",
    "signed_out_tokens",
    "payloads",
    "payload_chunks",
    "payload_stores",
    "rounds",
    "participations",
    "progress",
    "scores",
    "relevance",
    "roster",
    "round_manifests",
    "events",
    "webhook_messages",
    "updates",
    "signatures",
    "weights",
    "coded_weights",
    "folds",
    "joint_models",
    "anchors",
    "alignment_packs",
    "voided_packs",
    "sum_sessions",
    "sum_members",
    "sum_messages",
    "experts",
    "expert_revisions",
    "bank_rounds",
)
"""All tables in the order of their creation: a table comes after those that it refers to."""


def upgrade() -> None:
    _create_federations()
    _create_identity()
    _create_payloads()
    _create_rounds()
    _create_updates()
    _create_weights()
    _create_alignment()
    _create_secure_sums()
    _create_experts()


def downgrade() -> None:
    for table in reversed(TABLES):
        op.drop_table(table)


def _create_federations() -> None:
    op.create_table(
        "federations",
        required("id", TEXT, primary_key=True),
        required("name", TEXT),
        required("state", TEXT, index=True),
        required("plan", sa.JSON()),
        required("events", sa.Integer()),
        required("sum_phase", sa.Integer(), server_default="0"),
        required("created_at", TIME),
        optional("finished_at", TIME),
    )
    op.create_table(
        "person_tokens",
        required("id", TEXT, primary_key=True),
        required("role", TEXT),
        required("name", TEXT),
        required("token_hash", TEXT, unique=True),
        required("created_at", TIME),
        optional("expires_at", TIME),
        optional("revoked_at", TIME),
    )
    op.create_table(
        "clients",
        required("id", TEXT, primary_key=True),
        required("federation_id", TEXT, sa.ForeignKey("federations.id"), index=True),
        required("name", TEXT),
        optional("organisation", TEXT),
        required("base_model", TEXT),
        required("profile", sa.JSON()),
        required("state", TEXT),
        optional("credential_hash", TEXT, unique=True),
        required("enrolled_at", TIME),
        optional("last_seen_at", TIME),
        optional("revoked_at", TIME),
        required("bytes_up", sa.BigInteger()),
        required("bytes_down", sa.BigInteger()),
        sa.UniqueConstraint("federation_id", "name"),
    )
    op.create_table(
        "enrolment_tokens",
        required("id", TEXT, primary_key=True),
        required("federation_id", TEXT, sa.ForeignKey("federations.id"), index=True),
        required("client_name", TEXT),
        optional("organisation", TEXT),
        required("token_hash", TEXT, unique=True),
        required("created_at", TIME),
        required("expires_at", TIME),
        optional("used_at", TIME),
        optional("retry_key_hash", TEXT),
        optional("cidr", TEXT),
        optional("base_model", TEXT),
        optional("client_id", TEXT, sa.ForeignKey("clients.id")),
    )
    op.create_table(
        "client_keys",
        required("public_key", TEXT, primary_key=True),
        required("client_id", TEXT, sa.ForeignKey("clients.id"), index=True),
        required("created_at", TIME),
        optional("expires_at", TIME),
    )
    op.create_table(
        "name_keys",
        required("scope", TEXT, primary_key=True),
        required("kind", TEXT, primary_key=True),
        required("key", TEXT, primary_key=True),
        required("name", TEXT),
    )


def _create_identity() -> None:
    op.create_table(
        "server_identity",
        required("id", sa.Integer(), primary_key=True),
        required("public_key", TEXT),
        required("created_at", TIME),
    )
    op.create_table(
        "audit",
        required("number", sa.Integer(), primary_key=True, autoincrement=False),
        required("document", sa.JSON()),
        required("hash", TEXT),
    )
    op.create_table(
        "used_nonces",
        required("public_key", TEXT, primary_key=True),
        required("nonce", TEXT, primary_key=True),
        required("used_at", TIME, index=True),
    )
    op.create_table(
        "failed_enrolments",
        required("origin", TEXT, primary_key=True),
        required("failed_at", TIME, primary_key=True, index=True),
    )
    op.create_table(
        "signed_out_tokens",
        required("digest", TEXT, primary_key=True),
        required("expires_at", TIME, index=True),
    )


def _create_payloads() -> None:
    op.create_table(
        "payloads",
        required("id", sa.Integer(), primary_key=True),
        optional("digest", TEXT, unique=True),
        required("bytes", sa.BigInteger()),
        required("created_at", TIME),
        optional("place", TEXT),
        optional("piece_digests", BYTES),
        sqlite_autoincrement=True,
    )
    op.create_table(
        "payload_chunks",
        required(
            "payload_id", sa.Integer(), sa.ForeignKey("payloads.id", ondelete="CASCADE"), primary_key=True
        ),
        required("begin", sa.BigInteger(), primary_key=True),
        required("data", BYTES),
    )
    if op.get_bind().dialect.name == "postgresql":
        # Trained numbers hardly shrink. PostgreSQL would try to compress values above 2 kB, a fifth of its
        # processor time under updates, and would decompress all bytes before a requested part.
        op.execute("ALTER TABLE payload_chunks ALTER COLUMN data SET STORAGE EXTERNAL")
    op.create_table(
        "payload_stores",
        required("base", TEXT, primary_key=True),
        required("token", TEXT),
        optional("previous", TEXT),
        required("renewed_at", TIME),
        required("owned_since", TIME),
    )


def _create_rounds() -> None:
    op.create_table(
        "rounds",
        required("id", sa.Integer(), primary_key=True),
        required("federation_id", TEXT, sa.ForeignKey("federations.id"), index=True),
        required("number", sa.Integer()),
        required("state", TEXT, index=True),
        required("version", sa.Integer()),
        optional("reason", TEXT),
        required("opened_at", TIME),
        optional("collecting_at", TIME),
        optional("deadline", TIME),
        optional("summing_at", TIME),
        optional("closing_at", TIME),
        optional("aggregating_at", TIME),
        optional("ended_at", TIME),
        optional("lease_token", TEXT),
        optional("lease_expires_at", TIME),
        sa.UniqueConstraint("federation_id", "number"),
    )
    op.create_table(
        "participations",
        required("round_id", sa.Integer(), sa.ForeignKey("rounds.id"), primary_key=True),
        required("client_id", TEXT, sa.ForeignKey("clients.id"), primary_key=True),
        required("state", TEXT),
        required("joined_at", TIME),
        required("base_digest", TEXT),
        required("bytes_up", sa.BigInteger()),
        required("bytes_down", sa.BigInteger()),
        optional("reject_reason", TEXT),
        required("is_waited_for", sa.Boolean(), server_default=sa.true()),
        optional("ready_at", TIME),
    )
    op.create_table(
        "progress",
        required("round_id", sa.Integer(), sa.ForeignKey("rounds.id"), primary_key=True),
        required("client_id", TEXT, sa.ForeignKey("clients.id"), primary_key=True),
        required("report", sa.JSON()),
        required("reported_at", TIME),
    )
    op.create_table(
        "scores",
        required("round_id", sa.Integer(), sa.ForeignKey("rounds.id"), primary_key=True),
        required("client_id", TEXT, sa.ForeignKey("clients.id"), primary_key=True),
        required("scores", sa.JSON()),
        required("received_at", TIME),
        required("changes", sa.Integer(), server_default="0"),
    )
    op.create_table(
        "relevance",
        required("round_id", sa.Integer(), sa.ForeignKey("rounds.id"), primary_key=True),
        required("client_id", TEXT, sa.ForeignKey("clients.id"), primary_key=True),
        required("ordinal", sa.Integer()),
        required("relevance", BYTES),
        required("similarity", BYTES),
        required("entropy", sa.Double()),
        optional("served", BYTES),
        optional("agreement", BYTES),
        optional("held", BYTES),
        optional("changes", BYTES),
    )
    op.create_table(
        "roster",
        required("federation_id", TEXT, sa.ForeignKey("federations.id"), primary_key=True),
        required("version", sa.Integer(), primary_key=True),
        required("client_id", TEXT, sa.ForeignKey("clients.id")),
        required("at", TIME),
        required("document", sa.JSON()),
        required("hash", TEXT),
    )
    op.create_table(
        "round_manifests",
        required("client_id", TEXT, sa.ForeignKey("clients.id"), primary_key=True),
        required("round_number", sa.Integer(), primary_key=True),
        required("document", sa.JSON()),
        required("hash", TEXT),
    )
    op.create_table(
        "events",
        required("federation_id", TEXT, sa.ForeignKey("federations.id"), primary_key=True),
        required("number", sa.Integer(), primary_key=True),
        required("kind", TEXT),
        optional("client_id", TEXT, sa.ForeignKey("clients.id")),
        required("data", sa.JSON()),
        required("created_at", TIME),
    )
    op.create_table(
        "webhook_messages",
        required("id", TEXT, primary_key=True),
        required("federation_id", TEXT, sa.ForeignKey("federations.id"), index=True),
        required("kind", TEXT),
        required("data", sa.JSON()),
        required("created_at", TIME, index=True),
        required("attempts", sa.Integer()),
        required("due_at", TIME, index=True),
        optional("delivered_at", TIME),
    )


def _create_updates() -> None:
    op.create_table(
        "updates",
        required("id", sa.Integer(), primary_key=True),
        required("federation_id", TEXT, sa.ForeignKey("federations.id")),
        required("round_id", sa.Integer(), sa.ForeignKey("rounds.id")),
        required("round_number", sa.Integer()),
        required("client_id", TEXT, sa.ForeignKey("clients.id"), index=True),
        required("digest", TEXT),
        required("bytes", sa.BigInteger()),
        optional("payload_id", sa.Integer(), sa.ForeignKey("payloads.id"), index=True),
        optional("state_payload_id", sa.Integer(), sa.ForeignKey("payloads.id"), index=True),
        required("state_begin", sa.BigInteger()),
        required("layout", sa.JSON()),
        required("norm", sa.Double()),
        required("clipped", sa.Boolean()),
        optional("sent_ranks", sa.Integer()),
        optional("training_epsilon", sa.Double()),
        required("examples", sa.Integer()),
        optional("pack_digest", TEXT),
        required("received_at", TIME),
        optional("reject_reason", TEXT),
        sa.UniqueConstraint("round_id", "client_id"),
    )
    op.create_table(
        "signatures",
        required("id", sa.Integer(), primary_key=True),
        required("federation_id", TEXT, sa.ForeignKey("federations.id")),
        required("round_id", sa.Integer(), sa.ForeignKey("rounds.id")),
        required("round_number", sa.Integer()),
        required("client_id", TEXT, sa.ForeignKey("clients.id"), index=True),
        required("origin", TEXT),
        required("vector", BYTES),
        required("reliability", sa.Double(), server_default="1"),
        optional("epsilon", sa.Double()),
        sa.UniqueConstraint("round_id", "client_id", "origin"),
    )


def _create_weights() -> None:
    op.create_table(
        "weights",
        required("id", sa.Integer(), primary_key=True),
        required("federation_id", TEXT, sa.ForeignKey("federations.id")),
        required("round_number", sa.Integer()),
        required("client_id", TEXT, sa.ForeignKey("clients.id"), index=True),
        optional("payload_id", sa.Integer(), sa.ForeignKey("payloads.id"), index=True),
        optional("head", BYTES),
        required("begin", sa.BigInteger(), server_default="0"),
        required("digest", TEXT),
        required("bytes", sa.BigInteger()),
        required("created_at", TIME),
        sa.UniqueConstraint("federation_id", "client_id", "round_number"),
    )
    op.create_table(
        "coded_weights",
        required("federation_id", TEXT, sa.ForeignKey("federations.id"), primary_key=True),
        required("client_id", TEXT, sa.ForeignKey("clients.id"), primary_key=True),
        required("round_number", sa.Integer(), primary_key=True),
        required("recipe", TEXT, primary_key=True),
        optional("payload_id", sa.Integer(), sa.ForeignKey("payloads.id"), index=True),
    )
    op.create_table(
        "folds",
        required("id", sa.Integer(), primary_key=True),
        required("federation_id", TEXT, sa.ForeignKey("federations.id")),
        required("round_number", sa.Integer()),
        required("base_model", TEXT),
        required("form", TEXT),
        required("layout", sa.JSON()),
        optional("payload_id", sa.Integer(), sa.ForeignKey("payloads.id"), index=True),
        sa.UniqueConstraint("federation_id", "base_model", "form", "round_number"),
    )
    op.create_table(
        "joint_models",
        required("federation_id", TEXT, sa.ForeignKey("federations.id"), primary_key=True),
        required("round_number", sa.Integer(), primary_key=True),
        required("layout", sa.JSON()),
        required("digest", TEXT),
        optional("payload_id", sa.Integer(), sa.ForeignKey("payloads.id"), index=True),
        required("losses", sa.JSON()),
        required("is_void", sa.Boolean()),
    )


def _create_alignment() -> None:
    op.create_table(
        "anchors",
        required("federation_id", TEXT, sa.ForeignKey("federations.id"), primary_key=True),
        required("payload_id", sa.Integer(), sa.ForeignKey("payloads.id"), index=True),
        required("digest", TEXT),
        required("bytes", sa.BigInteger()),
        required("count", sa.Integer()),
    )
    op.create_table(
        "alignment_packs",
        required("id", sa.Integer(), primary_key=True),
        required("federation_id", TEXT, sa.ForeignKey("federations.id")),
        required("base_model", TEXT),
        required("payload_id", sa.Integer(), sa.ForeignKey("payloads.id"), index=True),
        required("digest", TEXT),
        required("bytes", sa.BigInteger()),
        required("alignment_set", TEXT),
        required("selected", sa.JSON()),
        required("errors", sa.JSON()),
        optional("stored_by", TEXT, sa.ForeignKey("clients.id")),
        required("stored_at", TIME),
        optional("acceptance", sa.JSON()),
        optional("verdicts", sa.JSON()),
        sa.UniqueConstraint("federation_id", "base_model"),
    )
    op.create_table(
        "voided_packs",
        required("federation_id", TEXT, sa.ForeignKey("federations.id"), primary_key=True),
        required("base_model", TEXT, primary_key=True),
        required("digest", TEXT, primary_key=True),
    )


def _create_secure_sums() -> None:
    op.create_table(
        "sum_sessions",
        required("id", sa.Integer(), primary_key=True),
        required("round_id", sa.Integer(), sa.ForeignKey("rounds.id")),
        required("number", sa.Integer()),
        required("kind", TEXT),
        required("state", TEXT, index=True),
        required("version", sa.Integer()),
        required("terms", sa.JSON()),
        required("terms_hash", TEXT),
        required("phase_opened_at", TIME),
        required("closed", sa.JSON()),
        optional("lease_token", TEXT),
        optional("lease_expires_at", TIME),
        optional("total_payload_id", sa.Integer(), sa.ForeignKey("payloads.id"), index=True),
        optional("reason", TEXT),
        required("opened_at", TIME),
        optional("ended_at", TIME),
        sa.UniqueConstraint("round_id", "number"),
    )
    op.create_table(
        "sum_members",
        required("session_id", sa.Integer(), sa.ForeignKey("sum_sessions.id"), primary_key=True),
        required("position", sa.Integer(), primary_key=True),
        required("client_id", TEXT, sa.ForeignKey("clients.id")),
        required("spent", sa.Boolean()),
        sa.UniqueConstraint("session_id", "client_id"),
    )
    op.create_table(
        "sum_messages",
        required("session_id", sa.Integer(), sa.ForeignKey("sum_sessions.id"), primary_key=True),
        required("position", sa.Integer(), primary_key=True),
        required("step", TEXT, primary_key=True),
        required("digest", TEXT),
        optional("body", BYTES),
        optional("payload_id", sa.Integer(), sa.ForeignKey("payloads.id"), index=True),
        required("received_at", TIME),
    )


def _create_experts() -> None:
    op.create_table(
        "experts",
        required("federation_id", TEXT, sa.ForeignKey("federations.id"), primary_key=True),
        required("expert", sa.Integer(), primary_key=True, autoincrement=False),
        required("status", TEXT),
        required("born", sa.Integer()),
        required("grace_until", sa.Integer()),
        required("prior", sa.Double()),
        optional("utilisation", sa.Double()),
        required("strikes", sa.Integer()),
        optional("parent", sa.Integer()),
        optional("merged_into", sa.Integer()),
        optional("ended", sa.Integer()),
    )
    op.create_table(
        "expert_revisions",
        required("federation_id", TEXT, primary_key=True),
        required("expert", sa.Integer(), primary_key=True, autoincrement=False),
        required("round_number", sa.Integer(), primary_key=True, autoincrement=False),
        optional("payload_id", sa.Integer(), sa.ForeignKey("payloads.id"), index=True),
        required("digest", TEXT),
        required("bytes", sa.Integer()),
        required("contributors", sa.Integer()),
        sa.ForeignKeyConstraint(["federation_id", "expert"], ["experts.federation_id", "experts.expert"]),
    )
    op.create_table(
        "bank_rounds",
        required("federation_id", TEXT, sa.ForeignKey("federations.id"), primary_key=True),
        required("round_number", sa.Integer(), primary_key=True, autoincrement=False),
        required("sums", sa.JSON()),
        required("events", sa.JSON()),
        required("memory", sa.JSON()),
    )
