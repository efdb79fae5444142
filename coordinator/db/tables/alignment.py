"""Tables of alignment packs and anchors."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import JSON, BigInteger, ForeignKey, UniqueConstraint
from sqlalchemy.orm import Mapped, mapped_column

from coordinator.db.tables.federations import Table


class AnchorsRow(Table):
    """A federation's public anchor texts: the JSON as one payload."""

    __tablename__ = "anchors"

    federation_id: Mapped[str] = mapped_column(ForeignKey("federations.id"), primary_key=True)
    payload_id: Mapped[int] = mapped_column(ForeignKey("payloads.id"), index=True)
    digest: Mapped[str]
    bytes: Mapped[int] = mapped_column(BigInteger)
    count: Mapped[int]


class PackRow(Table):
    """The alignment pack of one base model.

    `verdicts` has each client's acceptance test by its id, `acceptance` the valid one, if any.
    """

    __tablename__ = "alignment_packs"
    __table_args__ = (UniqueConstraint("federation_id", "base_model"),)

    id: Mapped[int] = mapped_column(primary_key=True)
    federation_id: Mapped[str] = mapped_column(ForeignKey("federations.id"))
    base_model: Mapped[str]
    payload_id: Mapped[int] = mapped_column(ForeignKey("payloads.id"), index=True)
    digest: Mapped[str]
    bytes: Mapped[int] = mapped_column(BigInteger)
    alignment_set: Mapped[str]
    selected: Mapped[list[Any]]
    errors: Mapped[dict[str, Any]]
    stored_by: Mapped[str | None] = mapped_column(ForeignKey("clients.id"))
    stored_at: Mapped[datetime]
    acceptance: Mapped[dict[str, Any] | None] = mapped_column(JSON(none_as_null=True))
    verdicts: Mapped[dict[str, Any] | None] = mapped_column(JSON(none_as_null=True))


class VoidedPackRow(Table):
    """A pack that was replaced, deleted or stored by a revoked client; agents drop their copies."""

    __tablename__ = "voided_packs"

    federation_id: Mapped[str] = mapped_column(ForeignKey("federations.id"), primary_key=True)
    base_model: Mapped[str] = mapped_column(primary_key=True)
    digest: Mapped[str] = mapped_column(primary_key=True)
