"""Tables of federations, clients and rounds. Tensors are payloads: content-addressed bytes in chunk rows."""

from __future__ import annotations

from datetime import datetime
from typing import Any, ClassVar

from sqlalchemy import JSON, BigInteger, ForeignKey, Index, LargeBinary, MetaData, String, UniqueConstraint
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column
from sqlalchemy.sql.expression import true

from coordinator.db.clock import UtcDateTime

Octets = bytes  # for tables that have a column of this name


class Table(DeclarativeBase):
    """Base class of all tables; one naming convention lets migrations name constraints."""

    metadata = MetaData(
        naming_convention={
            "ix": "ix_%(column_0_N_label)s",
            "uq": "uq_%(table_name)s_%(column_0_N_name)s",
            "fk": "fk_%(table_name)s_%(column_0_N_name)s_%(referred_table_name)s",
            "pk": "pk_%(table_name)s",
        }
    )
    type_annotation_map: ClassVar[dict[Any, Any]] = {
        datetime: UtcDateTime,
        dict[str, Any]: JSON,
        list[Any]: JSON,
        bytes: LargeBinary,
        str: String(200),
    }


class PersonToken(Table):
    """A person's bearer token, hashed."""

    __tablename__ = "person_tokens"

    id: Mapped[str] = mapped_column(primary_key=True)
    role: Mapped[str]
    name: Mapped[str]
    token_hash: Mapped[str] = mapped_column(unique=True)
    created_at: Mapped[datetime]
    expires_at: Mapped[datetime | None]
    revoked_at: Mapped[datetime | None]


class FederationRow(Table):
    """A federation with its resolved plan; its row is the lock for changes of its rounds."""

    __tablename__ = "federations"

    id: Mapped[str] = mapped_column(primary_key=True)
    name: Mapped[str]
    state: Mapped[str] = mapped_column(index=True)
    plan: Mapped[dict[str, Any]]
    events: Mapped[int] = mapped_column(default=0)  # number of the last event
    sum_phase: Mapped[int] = mapped_column(default=0, server_default="0")  # phases of secure sums so far
    created_at: Mapped[datetime]
    finished_at: Mapped[datetime | None]


class EnrolmentTokenRow(Table):
    """A one-time token for one client name, hashed; `retry_key_hash` identifies a repeated request."""

    __tablename__ = "enrolment_tokens"

    id: Mapped[str] = mapped_column(primary_key=True)
    federation_id: Mapped[str] = mapped_column(ForeignKey("federations.id"), index=True)
    client_name: Mapped[str]
    organisation: Mapped[str | None]
    token_hash: Mapped[str] = mapped_column(unique=True)
    created_at: Mapped[datetime]
    expires_at: Mapped[datetime]
    used_at: Mapped[datetime | None]
    retry_key_hash: Mapped[str | None]
    cidr: Mapped[str | None]  # only addresses in this network may use it
    base_model: Mapped[str | None]  # only a client of this base model may use it
    client_id: Mapped[str | None] = mapped_column(ForeignKey("clients.id"))


class ClientRow(Table):
    """One enrolled agent of one organisation; `credential_hash` is null if it signs its requests by a key."""

    __tablename__ = "clients"
    __table_args__ = (UniqueConstraint("federation_id", "name"),)

    id: Mapped[str] = mapped_column(primary_key=True)
    federation_id: Mapped[str] = mapped_column(ForeignKey("federations.id"), index=True)
    name: Mapped[str]
    organisation: Mapped[str | None]
    base_model: Mapped[str]
    profile: Mapped[dict[str, Any]]
    state: Mapped[str]
    credential_hash: Mapped[str | None] = mapped_column(unique=True)
    enrolled_at: Mapped[datetime]
    last_seen_at: Mapped[datetime | None]
    revoked_at: Mapped[datetime | None]
    bytes_up: Mapped[int] = mapped_column(BigInteger, default=0)
    bytes_down: Mapped[int] = mapped_column(BigInteger, default=0)


class RoundRow(Table):
    """One round; transitions compare and set `version`, `lease_token` fences an aggregation."""

    __tablename__ = "rounds"
    __table_args__ = (UniqueConstraint("federation_id", "number"), Index("ix_rounds_state", "state"))

    id: Mapped[int] = mapped_column(primary_key=True)
    federation_id: Mapped[str] = mapped_column(ForeignKey("federations.id"), index=True)
    number: Mapped[int]
    state: Mapped[str]
    version: Mapped[int] = mapped_column(default=0)
    reason: Mapped[str | None]
    opened_at: Mapped[datetime]
    collecting_at: Mapped[datetime | None]
    deadline: Mapped[datetime | None]
    summing_at: Mapped[datetime | None]
    closing_at: Mapped[datetime | None]
    aggregating_at: Mapped[datetime | None]
    ended_at: Mapped[datetime | None]  # published or abandoned
    lease_token: Mapped[str | None]
    lease_expires_at: Mapped[datetime | None]


class ParticipationRow(Table):
    """One client in one round; `base_digest` names the weights that it starts from.

    `is_waited_for`: the round stays open for this client until the deadline. `ready_at`: it has trained and
    waits for the sum.
    """

    __tablename__ = "participations"

    round_id: Mapped[int] = mapped_column(ForeignKey("rounds.id"), primary_key=True)
    client_id: Mapped[str] = mapped_column(ForeignKey("clients.id"), primary_key=True)
    state: Mapped[str]
    joined_at: Mapped[datetime]
    base_digest: Mapped[str]
    bytes_up: Mapped[int] = mapped_column(BigInteger, default=0)
    bytes_down: Mapped[int] = mapped_column(BigInteger, default=0)
    reject_reason: Mapped[str | None]
    is_waited_for: Mapped[bool] = mapped_column(default=True, server_default=true())
    ready_at: Mapped[datetime | None]


class PayloadRow(Table):
    """Bytes under their digest, in chunks or at the URL `place`; without digest unfinished, unreferenced.

    `piece_digests` has the SHA-256 of each piece of the object at `place`, and is null with chunks.
    """

    __tablename__ = "payloads"
    __table_args__ = ({"sqlite_autoincrement": True},)  # readers of a deleted payload find nothing

    id: Mapped[int] = mapped_column(primary_key=True)
    digest: Mapped[str | None] = mapped_column(unique=True)
    bytes: Mapped[int] = mapped_column(BigInteger)
    created_at: Mapped[datetime]
    place: Mapped[str | None]
    piece_digests: Mapped[Octets | None] = mapped_column(deferred=True)


class ChunkRow(Table):
    """A piece of a payload, at most CHUNK_BYTES; `begin` is the position of its first byte in the payload."""

    __tablename__ = "payload_chunks"

    payload_id: Mapped[int] = mapped_column(ForeignKey("payloads.id", ondelete="CASCADE"), primary_key=True)
    begin: Mapped[int] = mapped_column(BigInteger, primary_key=True)
    data: Mapped[bytes]


class PayloadStoreRow(Table):
    """A folder of a store, and the token that its owner left there; `storage.ownership` has the rules.

    `previous` is the token before; a process that died between database and store has left that one there.
    """

    __tablename__ = "payload_stores"

    base: Mapped[str] = mapped_column(primary_key=True)
    token: Mapped[str]
    previous: Mapped[str | None]
    renewed_at: Mapped[datetime]
    owned_since: Mapped[datetime]


class UpdateRow(Table):
    """A client's accepted adapter state of one round.

    `payload_id` are the bytes as received. The state, float32 values in the order of `layout` (of [tensor,
    shape]), begins at `state_begin` of `state_payload_id`, which may be the same. Retention clears both.
    """

    __tablename__ = "updates"
    __table_args__ = (UniqueConstraint("round_id", "client_id"),)

    id: Mapped[int] = mapped_column(primary_key=True)
    federation_id: Mapped[str] = mapped_column(ForeignKey("federations.id"))
    round_id: Mapped[int] = mapped_column(ForeignKey("rounds.id"))
    round_number: Mapped[int]
    client_id: Mapped[str] = mapped_column(ForeignKey("clients.id"), index=True)
    digest: Mapped[str]
    bytes: Mapped[int] = mapped_column(BigInteger)
    payload_id: Mapped[int | None] = mapped_column(ForeignKey("payloads.id"), index=True)
    state_payload_id: Mapped[int | None] = mapped_column(ForeignKey("payloads.id"), index=True)
    state_begin: Mapped[int] = mapped_column(BigInteger)
    layout: Mapped[list[Any]]
    norm: Mapped[float]
    clipped: Mapped[bool]
    training_epsilon: Mapped[float | None]
    examples: Mapped[int]
    pack_digest: Mapped[str | None]
    received_at: Mapped[datetime]
    reject_reason: Mapped[str | None]


class SignatureRow(Table):
    """A client's sketch of one round: float32 little-endian bytes; `origin` is update or join.

    `reliability` is the share of its squared length that is not noise, `epsilon` the privacy budget spent.
    """

    __tablename__ = "signatures"
    __table_args__ = (UniqueConstraint("round_id", "client_id", "origin"),)

    id: Mapped[int] = mapped_column(primary_key=True)
    federation_id: Mapped[str] = mapped_column(ForeignKey("federations.id"))
    round_id: Mapped[int] = mapped_column(ForeignKey("rounds.id"))
    round_number: Mapped[int]
    client_id: Mapped[str] = mapped_column(ForeignKey("clients.id"), index=True)
    origin: Mapped[str]
    vector: Mapped[bytes]
    reliability: Mapped[float] = mapped_column(server_default="1")
    epsilon: Mapped[float | None]


class RelevanceRow(Table):
    """Row i of a round's relevance: float64 little-endian over the round's `ordinal`s; NaN = not compared."""

    __tablename__ = "relevance"

    round_id: Mapped[int] = mapped_column(ForeignKey("rounds.id"), primary_key=True)
    client_id: Mapped[str] = mapped_column(ForeignKey("clients.id"), primary_key=True)
    ordinal: Mapped[int]
    relevance: Mapped[bytes]
    similarity: Mapped[bytes]
    entropy: Mapped[float]
    served: Mapped[bytes | None]  # this and the following columns: results of the guard, None without one
    agreement: Mapped[bytes | None]
    held: Mapped[bytes | None]
    changes: Mapped[bytes | None]  # (4, N), see `aggregation.changes`; None where not compared


class WeightsRow(Table):
    """Weights served to a client from `round_number` on: `head`, then the payload from `begin` on."""

    __tablename__ = "weights"
    __table_args__ = (UniqueConstraint("federation_id", "client_id", "round_number"),)

    id: Mapped[int] = mapped_column(primary_key=True)
    federation_id: Mapped[str] = mapped_column(ForeignKey("federations.id"))
    round_number: Mapped[int]
    client_id: Mapped[str] = mapped_column(ForeignKey("clients.id"), index=True)
    payload_id: Mapped[int | None] = mapped_column(ForeignKey("payloads.id"), index=True)
    head: Mapped[Octets | None]
    begin: Mapped[int] = mapped_column(BigInteger, server_default="0")
    digest: Mapped[str]
    bytes: Mapped[int] = mapped_column(BigInteger)
    created_at: Mapped[datetime]


class CodedWeightsRow(Table):
    """A client's weights of a round, encoded in a recipe; without a payload the recipe cannot encode them.

    Derived from the weights and the update that they are relative to: retention deletes it, and it can be
    rebuilt while those exist.
    """

    __tablename__ = "coded_weights"

    federation_id: Mapped[str] = mapped_column(ForeignKey("federations.id"), primary_key=True)
    client_id: Mapped[str] = mapped_column(ForeignKey("clients.id"), primary_key=True)
    round_number: Mapped[int] = mapped_column(primary_key=True)
    recipe: Mapped[str] = mapped_column(primary_key=True)
    payload_id: Mapped[int | None] = mapped_column(ForeignKey("payloads.id"), index=True)


class FoldRow(Table):
    """The base delta of a round for clients of one `form` of adapter.

    The payload is float32 values in the order of `layout` (of [tensor, shape]): A and B, if such are served,
    and the factors RA, RB of all base deltas so far. A newer row supersedes and removes it.
    """

    __tablename__ = "folds"
    __table_args__ = (UniqueConstraint("federation_id", "base_model", "form", "round_number"),)

    id: Mapped[int] = mapped_column(primary_key=True)
    federation_id: Mapped[str] = mapped_column(ForeignKey("federations.id"))
    round_number: Mapped[int]
    base_model: Mapped[str]
    form: Mapped[str]
    layout: Mapped[list[Any]]
    payload_id: Mapped[int | None] = mapped_column(ForeignKey("payloads.id"), index=True)


class ScoresRow(Table):
    """A client's scores of a round: of the served weights, the trained adapter, and the final weights."""

    __tablename__ = "scores"

    round_id: Mapped[int] = mapped_column(ForeignKey("rounds.id"), primary_key=True)
    client_id: Mapped[str] = mapped_column(ForeignKey("clients.id"), primary_key=True)
    scores: Mapped[dict[str, Any]]
    received_at: Mapped[datetime]
    changes: Mapped[int] = mapped_column(server_default="0")  # number of replacements


class ProgressRow(Table):
    """The newest report of a client in a round; those of a federation go when its next round opens."""

    __tablename__ = "progress"

    round_id: Mapped[int] = mapped_column(ForeignKey("rounds.id"), primary_key=True)
    client_id: Mapped[str] = mapped_column(ForeignKey("clients.id"), primary_key=True)
    report: Mapped[dict[str, Any]]
    reported_at: Mapped[datetime]


class EventRow(Table):
    """An event of a federation, in order; `client_id` names the only client that may see it."""

    __tablename__ = "events"

    federation_id: Mapped[str] = mapped_column(ForeignKey("federations.id"), primary_key=True)
    number: Mapped[int] = mapped_column(primary_key=True)
    kind: Mapped[str]
    client_id: Mapped[str | None] = mapped_column(ForeignKey("clients.id"))
    data: Mapped[dict[str, Any]]
    created_at: Mapped[datetime]
