"""Messages for the webhook, from the transaction of what they report until they are old."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import ForeignKey
from sqlalchemy.orm import Mapped, mapped_column

from coordinator.db.tables.federations import Table


class WebhookRow(Table):
    """One message. `due_at` is the next attempt's time; during an attempt it is when another worker may try.

    `delivered_at` is set once the receiver accepted it.
    """

    __tablename__ = "webhook_messages"

    id: Mapped[str] = mapped_column(primary_key=True)
    federation_id: Mapped[str] = mapped_column(ForeignKey("federations.id"), index=True)
    kind: Mapped[str]
    data: Mapped[dict[str, Any]]
    created_at: Mapped[datetime] = mapped_column(index=True)
    attempts: Mapped[int]
    due_at: Mapped[datetime] = mapped_column(index=True)
    delivered_at: Mapped[datetime | None]
