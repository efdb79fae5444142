"""Tables of the secure sum: sessions, members, messages, and the model that all clients have in common."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import ForeignKey, UniqueConstraint
from sqlalchemy.orm import Mapped, mapped_column

from coordinator.db.tables.federations import Table


class SumSessionRow(Table):
    """One session of a round; transitions compare and set `version`, `lease_token` fences the opening.

    `state` is the phase that is open: keys, shares, masked, confirm, unmask, opening; then done or aborted,
    with a `reason`. `closed` maps each closed phase to the positions of the members who answered in time and
    the time of its end. The total is D little-endian int32 in the order of the
    segments of the terms; after proved counts, D scalars of 32 bytes follow, the sums of the blindings.
    """

    __tablename__ = "sum_sessions"
    __table_args__ = (UniqueConstraint("round_id", "number"),)

    id: Mapped[int] = mapped_column(primary_key=True)
    round_id: Mapped[int] = mapped_column(ForeignKey("rounds.id"))
    number: Mapped[int]
    kind: Mapped[str]
    state: Mapped[str] = mapped_column(index=True)
    version: Mapped[int] = mapped_column(default=0)
    terms: Mapped[dict[str, Any]]
    terms_hash: Mapped[str]
    phase_opened_at: Mapped[datetime]
    closed: Mapped[dict[str, Any]]
    lease_token: Mapped[str | None]
    lease_expires_at: Mapped[datetime | None]
    total_payload_id: Mapped[int | None] = mapped_column(ForeignKey("payloads.id"), index=True)
    reason: Mapped[str | None]
    opened_at: Mapped[datetime]
    ended_at: Mapped[datetime | None]


class SumMemberRow(Table):
    """A member of a session at its position in the terms; `spent`: it has sent its shares for unmasking."""

    __tablename__ = "sum_members"
    __table_args__ = (UniqueConstraint("session_id", "client_id"),)

    session_id: Mapped[int] = mapped_column(ForeignKey("sum_sessions.id"), primary_key=True)
    position: Mapped[int] = mapped_column(primary_key=True)
    client_id: Mapped[str] = mapped_column(ForeignKey("clients.id"))
    spent: Mapped[bool] = mapped_column(default=False)


class SumMessageRow(Table):
    """A member's message of one step, in `body`, or as a payload for a vector; committed counts are a body.

    All messages of a session are deleted when it ends.
    """

    __tablename__ = "sum_messages"

    session_id: Mapped[int] = mapped_column(ForeignKey("sum_sessions.id"), primary_key=True)
    position: Mapped[int] = mapped_column(primary_key=True)
    step: Mapped[str] = mapped_column(primary_key=True)
    digest: Mapped[str]
    body: Mapped[bytes | None]
    payload_id: Mapped[int | None] = mapped_column(ForeignKey("payloads.id"), index=True)
    received_at: Mapped[datetime]


class JointModelRow(Table):
    """The values that all clients have in common after a round: float32 in the order of `layout`.

    `digest` is that of the values; `losses` are the mean losses of the members of the sum, {} if they were
    not summed. Retention clears the payloads of old rounds. A model `is_void` once all alignment packs were
    replaced: clients begin anew.
    """

    __tablename__ = "joint_models"

    federation_id: Mapped[str] = mapped_column(ForeignKey("federations.id"), primary_key=True)
    round_number: Mapped[int] = mapped_column(primary_key=True)
    layout: Mapped[list[Any]]
    digest: Mapped[str]
    payload_id: Mapped[int | None] = mapped_column(ForeignKey("payloads.id"), index=True)
    losses: Mapped[dict[str, Any]]
    is_void: Mapped[bool] = mapped_column(default=False)
