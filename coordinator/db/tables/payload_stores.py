"""The object stores that this database has used, each with the token of its ownership."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy.orm import Mapped, mapped_column

from coordinator.db.tables.federations import Table


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
