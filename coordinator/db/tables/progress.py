"""The reports of clients on their training inside open rounds."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import ForeignKey
from sqlalchemy.orm import Mapped, mapped_column

from coordinator.db.tables.federations import Table


class ProgressRow(Table):
    """The newest report of a client in a round; those of a federation go when its next round opens."""

    __tablename__ = "progress"

    round_id: Mapped[int] = mapped_column(ForeignKey("rounds.id"), primary_key=True)
    client_id: Mapped[str] = mapped_column(ForeignKey("clients.id"), primary_key=True)
    report: Mapped[dict[str, Any]]
    reported_at: Mapped[datetime]
