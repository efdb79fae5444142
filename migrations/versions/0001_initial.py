"""All tables of the first version.

Revision: 0001, the first.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    _federations()
    _payloads()
    _person_tokens()
    _anchors()
    _clients()
    _payload_chunks()
    _rounds()
    _alignment_packs()
    _enrolment_tokens()
    _events()
    _participations()
    _relevance()
    _scores()
    _signatures()
    _updates()
    _weights()


def downgrade() -> None:
    op.drop_table("weights")
    op.drop_table("updates")
    op.drop_table("signatures")
    op.drop_table("scores")
    op.drop_table("relevance")
    op.drop_table("participations")
    op.drop_table("events")
    op.drop_table("enrolment_tokens")
    op.drop_table("alignment_packs")
    op.drop_table("rounds")
    op.drop_table("payload_chunks")
    op.drop_table("clients")
    op.drop_table("anchors")
    op.drop_table("person_tokens")
    op.drop_table("payloads")
    op.drop_table("federations")


def _federations() -> None:
    op.create_table(
        "federations",
        sa.Column("id", sa.String(length=200), nullable=False),
        sa.Column("name", sa.String(length=200), nullable=False),
        sa.Column("state", sa.String(length=200), nullable=False),
        sa.Column("plan", sa.JSON(), nullable=False),
        sa.Column("events", sa.Integer(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("finished_at", sa.DateTime(timezone=True), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_federations")),
    )
    op.create_index(op.f("ix_federations_state"), "federations", ["state"], unique=False)


def _payloads() -> None:
    op.create_table(
        "payloads",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("digest", sa.String(length=200), nullable=True),
        sa.Column("bytes", sa.BigInteger(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_payloads")),
        sa.UniqueConstraint("digest", name=op.f("uq_payloads_digest")),
    )


def _person_tokens() -> None:
    op.create_table(
        "person_tokens",
        sa.Column("id", sa.String(length=200), nullable=False),
        sa.Column("role", sa.String(length=200), nullable=False),
        sa.Column("name", sa.String(length=200), nullable=False),
        sa.Column("token_hash", sa.String(length=200), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("revoked_at", sa.DateTime(timezone=True), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_person_tokens")),
        sa.UniqueConstraint("token_hash", name=op.f("uq_person_tokens_token_hash")),
    )


def _anchors() -> None:
    op.create_table(
        "anchors",
        sa.Column("federation_id", sa.String(length=200), nullable=False),
        sa.Column("payload_id", sa.Integer(), nullable=False),
        sa.Column("digest", sa.String(length=200), nullable=False),
        sa.Column("bytes", sa.BigInteger(), nullable=False),
        sa.Column("count", sa.Integer(), nullable=False),
        sa.ForeignKeyConstraint(
            ["federation_id"], ["federations.id"], name=op.f("fk_anchors_federation_id_federations")
        ),
        sa.ForeignKeyConstraint(["payload_id"], ["payloads.id"], name=op.f("fk_anchors_payload_id_payloads")),
        sa.PrimaryKeyConstraint("federation_id", name=op.f("pk_anchors")),
    )
    op.create_index(op.f("ix_anchors_payload_id"), "anchors", ["payload_id"], unique=False)


def _clients() -> None:
    op.create_table(
        "clients",
        sa.Column("id", sa.String(length=200), nullable=False),
        sa.Column("federation_id", sa.String(length=200), nullable=False),
        sa.Column("name", sa.String(length=200), nullable=False),
        sa.Column("organisation", sa.String(length=200), nullable=True),
        sa.Column("base_model", sa.String(length=200), nullable=False),
        sa.Column("profile", sa.JSON(), nullable=False),
        sa.Column("state", sa.String(length=200), nullable=False),
        sa.Column("credential_hash", sa.String(length=200), nullable=False),
        sa.Column("enrolled_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("last_seen_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("revoked_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("bytes_up", sa.BigInteger(), nullable=False),
        sa.Column("bytes_down", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(
            ["federation_id"], ["federations.id"], name=op.f("fk_clients_federation_id_federations")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_clients")),
        sa.UniqueConstraint("credential_hash", name=op.f("uq_clients_credential_hash")),
        sa.UniqueConstraint("federation_id", "name", name=op.f("uq_clients_federation_id_name")),
    )
    op.create_index(op.f("ix_clients_federation_id"), "clients", ["federation_id"], unique=False)


def _payload_chunks() -> None:
    op.create_table(
        "payload_chunks",
        sa.Column("payload_id", sa.Integer(), nullable=False),
        sa.Column("begin", sa.BigInteger(), nullable=False),
        sa.Column("data", sa.LargeBinary(), nullable=False),
        sa.ForeignKeyConstraint(
            ["payload_id"],
            ["payloads.id"],
            name=op.f("fk_payload_chunks_payload_id_payloads"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("payload_id", "begin", name=op.f("pk_payload_chunks")),
    )


def _rounds() -> None:
    op.create_table(
        "rounds",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("federation_id", sa.String(length=200), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("state", sa.String(length=200), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("reason", sa.String(length=200), nullable=True),
        sa.Column("opened_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("collecting_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("deadline", sa.DateTime(timezone=True), nullable=True),
        sa.Column("closing_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("aggregating_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("ended_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("lease_token", sa.String(length=200), nullable=True),
        sa.Column("lease_expires_at", sa.DateTime(timezone=True), nullable=True),
        sa.ForeignKeyConstraint(
            ["federation_id"], ["federations.id"], name=op.f("fk_rounds_federation_id_federations")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_rounds")),
        sa.UniqueConstraint("federation_id", "number", name=op.f("uq_rounds_federation_id_number")),
    )
    op.create_index(op.f("ix_rounds_federation_id"), "rounds", ["federation_id"], unique=False)
    op.create_index(op.f("ix_rounds_state"), "rounds", ["state"], unique=False)


def _alignment_packs() -> None:
    op.create_table(
        "alignment_packs",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("federation_id", sa.String(length=200), nullable=False),
        sa.Column("base_model", sa.String(length=200), nullable=False),
        sa.Column("payload_id", sa.Integer(), nullable=False),
        sa.Column("digest", sa.String(length=200), nullable=False),
        sa.Column("bytes", sa.BigInteger(), nullable=False),
        sa.Column("alignment_set", sa.String(length=200), nullable=False),
        sa.Column("selected", sa.JSON(), nullable=False),
        sa.Column("errors", sa.JSON(), nullable=False),
        sa.Column("stored_by", sa.String(length=200), nullable=True),
        sa.Column("stored_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(
            ["federation_id"], ["federations.id"], name=op.f("fk_alignment_packs_federation_id_federations")
        ),
        sa.ForeignKeyConstraint(
            ["payload_id"], ["payloads.id"], name=op.f("fk_alignment_packs_payload_id_payloads")
        ),
        sa.ForeignKeyConstraint(
            ["stored_by"], ["clients.id"], name=op.f("fk_alignment_packs_stored_by_clients")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_alignment_packs")),
        sa.UniqueConstraint(
            "federation_id", "base_model", name=op.f("uq_alignment_packs_federation_id_base_model")
        ),
    )
    op.create_index(op.f("ix_alignment_packs_payload_id"), "alignment_packs", ["payload_id"], unique=False)


def _enrolment_tokens() -> None:
    op.create_table(
        "enrolment_tokens",
        sa.Column("id", sa.String(length=200), nullable=False),
        sa.Column("federation_id", sa.String(length=200), nullable=False),
        sa.Column("client_name", sa.String(length=200), nullable=False),
        sa.Column("organisation", sa.String(length=200), nullable=True),
        sa.Column("token_hash", sa.String(length=200), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("used_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("retry_key_hash", sa.String(length=200), nullable=True),
        sa.Column("client_id", sa.String(length=200), nullable=True),
        sa.ForeignKeyConstraint(
            ["client_id"], ["clients.id"], name=op.f("fk_enrolment_tokens_client_id_clients")
        ),
        sa.ForeignKeyConstraint(
            ["federation_id"], ["federations.id"], name=op.f("fk_enrolment_tokens_federation_id_federations")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_enrolment_tokens")),
        sa.UniqueConstraint("token_hash", name=op.f("uq_enrolment_tokens_token_hash")),
    )
    op.create_index(
        op.f("ix_enrolment_tokens_federation_id"), "enrolment_tokens", ["federation_id"], unique=False
    )


def _events() -> None:
    op.create_table(
        "events",
        sa.Column("federation_id", sa.String(length=200), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("kind", sa.String(length=200), nullable=False),
        sa.Column("client_id", sa.String(length=200), nullable=True),
        sa.Column("data", sa.JSON(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(["client_id"], ["clients.id"], name=op.f("fk_events_client_id_clients")),
        sa.ForeignKeyConstraint(
            ["federation_id"], ["federations.id"], name=op.f("fk_events_federation_id_federations")
        ),
        sa.PrimaryKeyConstraint("federation_id", "number", name=op.f("pk_events")),
    )


def _participations() -> None:
    op.create_table(
        "participations",
        sa.Column("round_id", sa.Integer(), nullable=False),
        sa.Column("client_id", sa.String(length=200), nullable=False),
        sa.Column("state", sa.String(length=200), nullable=False),
        sa.Column("joined_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("base_digest", sa.String(length=200), nullable=False),
        sa.Column("bytes_up", sa.BigInteger(), nullable=False),
        sa.Column("bytes_down", sa.BigInteger(), nullable=False),
        sa.Column("reject_reason", sa.String(length=200), nullable=True),
        sa.ForeignKeyConstraint(
            ["client_id"], ["clients.id"], name=op.f("fk_participations_client_id_clients")
        ),
        sa.ForeignKeyConstraint(["round_id"], ["rounds.id"], name=op.f("fk_participations_round_id_rounds")),
        sa.PrimaryKeyConstraint("round_id", "client_id", name=op.f("pk_participations")),
    )


def _relevance() -> None:
    op.create_table(
        "relevance",
        sa.Column("round_id", sa.Integer(), nullable=False),
        sa.Column("client_id", sa.String(length=200), nullable=False),
        sa.Column("ordinal", sa.Integer(), nullable=False),
        sa.Column("relevance", sa.LargeBinary(), nullable=False),
        sa.Column("similarity", sa.LargeBinary(), nullable=False),
        sa.Column("entropy", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(["client_id"], ["clients.id"], name=op.f("fk_relevance_client_id_clients")),
        sa.ForeignKeyConstraint(["round_id"], ["rounds.id"], name=op.f("fk_relevance_round_id_rounds")),
        sa.PrimaryKeyConstraint("round_id", "client_id", name=op.f("pk_relevance")),
    )


def _scores() -> None:
    op.create_table(
        "scores",
        sa.Column("round_id", sa.Integer(), nullable=False),
        sa.Column("client_id", sa.String(length=200), nullable=False),
        sa.Column("scores", sa.JSON(), nullable=False),
        sa.Column("received_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(["client_id"], ["clients.id"], name=op.f("fk_scores_client_id_clients")),
        sa.ForeignKeyConstraint(["round_id"], ["rounds.id"], name=op.f("fk_scores_round_id_rounds")),
        sa.PrimaryKeyConstraint("round_id", "client_id", name=op.f("pk_scores")),
    )


def _signatures() -> None:
    op.create_table(
        "signatures",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("federation_id", sa.String(length=200), nullable=False),
        sa.Column("round_id", sa.Integer(), nullable=False),
        sa.Column("round_number", sa.Integer(), nullable=False),
        sa.Column("client_id", sa.String(length=200), nullable=False),
        sa.Column("origin", sa.String(length=200), nullable=False),
        sa.Column("vector", sa.LargeBinary(), nullable=False),
        sa.ForeignKeyConstraint(["client_id"], ["clients.id"], name=op.f("fk_signatures_client_id_clients")),
        sa.ForeignKeyConstraint(
            ["federation_id"], ["federations.id"], name=op.f("fk_signatures_federation_id_federations")
        ),
        sa.ForeignKeyConstraint(["round_id"], ["rounds.id"], name=op.f("fk_signatures_round_id_rounds")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_signatures")),
        sa.UniqueConstraint(
            "round_id", "client_id", "origin", name=op.f("uq_signatures_round_id_client_id_origin")
        ),
    )
    op.create_index(op.f("ix_signatures_client_id"), "signatures", ["client_id"], unique=False)


def _updates() -> None:
    op.create_table(
        "updates",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("federation_id", sa.String(length=200), nullable=False),
        sa.Column("round_id", sa.Integer(), nullable=False),
        sa.Column("round_number", sa.Integer(), nullable=False),
        sa.Column("client_id", sa.String(length=200), nullable=False),
        sa.Column("digest", sa.String(length=200), nullable=False),
        sa.Column("bytes", sa.BigInteger(), nullable=False),
        sa.Column("payload_id", sa.Integer(), nullable=False),
        sa.Column("state_payload_id", sa.Integer(), nullable=False),
        sa.Column("state_begin", sa.BigInteger(), nullable=False),
        sa.Column("layout", sa.JSON(), nullable=False),
        sa.Column("norm", sa.Double(), nullable=False),
        sa.Column("clipped", sa.Boolean(), nullable=False),
        sa.Column("examples", sa.Integer(), nullable=False),
        sa.Column("pack_digest", sa.String(length=200), nullable=True),
        sa.Column("received_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("reject_reason", sa.String(length=200), nullable=True),
        sa.ForeignKeyConstraint(["client_id"], ["clients.id"], name=op.f("fk_updates_client_id_clients")),
        sa.ForeignKeyConstraint(
            ["federation_id"], ["federations.id"], name=op.f("fk_updates_federation_id_federations")
        ),
        sa.ForeignKeyConstraint(["payload_id"], ["payloads.id"], name=op.f("fk_updates_payload_id_payloads")),
        sa.ForeignKeyConstraint(["round_id"], ["rounds.id"], name=op.f("fk_updates_round_id_rounds")),
        sa.ForeignKeyConstraint(
            ["state_payload_id"], ["payloads.id"], name=op.f("fk_updates_state_payload_id_payloads")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_updates")),
        sa.UniqueConstraint("round_id", "client_id", name=op.f("uq_updates_round_id_client_id")),
    )
    op.create_index(op.f("ix_updates_client_id"), "updates", ["client_id"], unique=False)
    op.create_index(op.f("ix_updates_payload_id"), "updates", ["payload_id"], unique=False)
    op.create_index(op.f("ix_updates_state_payload_id"), "updates", ["state_payload_id"], unique=False)


def _weights() -> None:
    op.create_table(
        "weights",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("federation_id", sa.String(length=200), nullable=False),
        sa.Column("round_number", sa.Integer(), nullable=False),
        sa.Column("client_id", sa.String(length=200), nullable=False),
        sa.Column("payload_id", sa.Integer(), nullable=False),
        sa.Column("digest", sa.String(length=200), nullable=False),
        sa.Column("bytes", sa.BigInteger(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(["client_id"], ["clients.id"], name=op.f("fk_weights_client_id_clients")),
        sa.ForeignKeyConstraint(
            ["federation_id"], ["federations.id"], name=op.f("fk_weights_federation_id_federations")
        ),
        sa.ForeignKeyConstraint(["payload_id"], ["payloads.id"], name=op.f("fk_weights_payload_id_payloads")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_weights")),
        sa.UniqueConstraint(
            "federation_id",
            "client_id",
            "round_number",
            name=op.f("uq_weights_federation_id_client_id_round_number"),
        ),
    )
    op.create_index(op.f("ix_weights_client_id"), "weights", ["client_id"], unique=False)
    op.create_index(op.f("ix_weights_payload_id"), "weights", ["payload_id"], unique=False)
