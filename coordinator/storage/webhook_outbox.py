"""Messages for the webhook: stored in the transaction of what they report, claimed by one worker at a time.

They are stored without a webhook, too, since a replica may have one; old ones are deleted, delivered or not.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Literal

from sqlalchemy import bindparam, select, update
from sqlalchemy.orm import Session

from coordinator.db.engine import Database, database_time, run
from coordinator.db.ids import new_id
from coordinator.db.tables.webhooks import WebhookRow
from coordinator.db.upsert import delete_before, insert_new
from schemas.identity.webhooks import MESSAGE_ID

Kind = Literal[
    "round.stuck",
    "round.abandoned",
    "federation.paused",
    "federation.finished",
    "sum.member-blamed",
]

KEPT = timedelta(days=3)
"""Age at which a message is deleted; one that could not be delivered by then is lost."""

_DUE = (
    select(WebhookRow)
    .where(WebhookRow.delivered_at.is_(None), WebhookRow.due_at <= bindparam("now"))
    .order_by(WebhookRow.due_at)
    .limit(1)
    .with_for_update(skip_locked=True)
)
_IS_DUE = (
    select(WebhookRow.id)
    .where(WebhookRow.delivered_at.is_(None), WebhookRow.due_at <= bindparam("now"))
    .limit(1)
)


@dataclass(frozen=True, slots=True)
class Message:
    """A claimed message; `attempts` counts this one, and identifies the claim."""

    id: str
    federation_id: str
    kind: str
    data: dict[str, Any]
    created_at: datetime
    attempts: int


def add(
    session: Session, federation_id: str, kind: Kind, data: dict[str, Any], *, message_id: str | None = None
) -> bool:
    """Add a message to the transaction; return False if one with this `message_id` exists."""
    now = database_time(session)
    values = {
        "id": message_id or new_id(MESSAGE_ID.rstrip("_")),
        "federation_id": federation_id,
        "kind": kind,
        "data": data,
        "created_at": now,
        "attempts": 0,
        "due_at": now,
        "delivered_at": None,
    }
    return insert_new(session, WebhookRow, values)


def missing(session: Session, message_ids: Collection[str]) -> set[str]:
    """Return those of some ids that no message has."""
    stored = session.scalars(select(WebhookRow.id).where(WebhookRow.id.in_(message_ids)))
    return set(message_ids) - set(stored)


def claim(database: Database, lease: timedelta) -> Message | None:
    """Claim a message that is due, so that no other worker tries it before the lease ends; None = none is."""
    # Looked for without a write transaction, which would take SQLite's lock at every tick.
    with database.read() as session:
        if run(session, _IS_DUE, {"now": database_time(session)}).first() is None:
            return None
    with database.write() as session:
        now = database_time(session)
        row = session.scalar(_DUE, {"now": now})
        if row is None:
            return None
        row.attempts += 1
        # The lease is the time of the next attempt: nothing has to be released by a worker that died.
        row.due_at = now + lease
        return Message(row.id, row.federation_id, row.kind, row.data, row.created_at, row.attempts)


def mark_delivered(database: Database, message: Message) -> None:
    """Record that the receiver has a message, sent by any worker."""
    with database.write() as session:
        session.execute(
            update(WebhookRow)
            .where(WebhookRow.id == message.id, WebhookRow.delivered_at.is_(None))
            .values(delivered_at=database_time(session))
            .execution_options(synchronize_session=False)
        )


def retry_in(database: Database, message: Message, seconds: float) -> None:
    """Offer a message again after a time, unless another worker has claimed it meanwhile."""
    with database.write() as session:
        session.execute(
            update(WebhookRow)
            .where(WebhookRow.id == message.id, WebhookRow.attempts == message.attempts)
            .values(due_at=database_time(session) + timedelta(seconds=seconds))
            .execution_options(synchronize_session=False)
        )


def delete_old(database: Database) -> int:
    """Delete a batch of messages older than KEPT; return their number."""
    with database.write() as session:
        return delete_before(session, WebhookRow.created_at, database_time(session) - KEPT)
