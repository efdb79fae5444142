"""Append to and read the events of federations; old events are deleted."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from sqlalchemy import bindparam, delete, insert, or_, select, update
from sqlalchemy.orm import Session

from coordinator.db.engine import Database, database_time, run
from coordinator.db.tables.federations import EventRow, FederationRow

Kind = Literal["round", "client", "alignment", "sum", "expert"]

MAX_EVENTS = 10_000
"""Number of newest events stored per federation; more between two clean-ups."""

# The change of a sum or mean when a client takes part reveals that client's value.
_AGGREGATES = frozenset({"bytes", "scores"})

_NUMBER = (
    update(FederationRow)
    .where(FederationRow.id == bindparam("federation_id"))
    .values(events=FederationRow.events + 1)
    .returning(FederationRow.events)
)
_EVENT = insert(EventRow)


@dataclass(frozen=True, slots=True)
class Event:
    """An event of a federation; `client_id` names the only client that may see it."""

    number: int
    kind: str
    data: dict[str, Any]
    client_id: str | None = None

    def is_for(self, client_id: str | None) -> bool:
        """Whether a client may see the event; None is a person, who sees all."""
        return client_id is None or self.client_id in (None, client_id)


def append(
    session: Session,
    federation_id: str,
    kind: Kind,
    data: dict[str, Any],
    client_id: str | None = None,
    *,
    at: datetime | None = None,
) -> int:
    """Append an event, and return its number; with `client_id`, only this client and people see it."""
    # The federation's row stays locked until the commit, so that events become visible in their order.
    row = run(session, _NUMBER, {"federation_id": federation_id}).first()
    if row is None:
        raise LookupError("no federation has this id")
    run(
        session,
        _EVENT,
        {
            "federation_id": federation_id,
            "number": row.events,
            "kind": kind,
            "client_id": client_id,
            "data": data,
            "created_at": at or database_time(session),
        },
    )
    return int(row.events)


def since(
    session: Session, federation_id: str, number: int, *, client_id: str | None = None, limit: int = 100
) -> list[Event]:
    """Return the events after `number` in order, as seen by a client, or by a person (None)."""
    query = select(EventRow).where(EventRow.federation_id == federation_id, EventRow.number > number)
    if client_id is not None:
        query = query.where(or_(EventRow.client_id.is_(None), EventRow.client_id == client_id))
    rows = session.scalars(query.order_by(EventRow.number).limit(limit))
    events = [Event(row.number, row.kind, row.data, row.client_id) for row in rows]
    return events if client_id is None else [for_clients(event) for event in events]


def for_clients(event: Event) -> Event:
    """Return an event without the aggregates of a round that clients must not see."""
    if event.kind != "round":
        return event
    visible = {name: value for name, value in event.data.items() if name not in _AGGREGATES}
    return Event(event.number, event.kind, visible, event.client_id)


def numbers(session: Session, federation_ids: Collection[str]) -> dict[str, int]:
    query = select(FederationRow.id, FederationRow.events).where(FederationRow.id.in_(federation_ids))
    return {federation_id: number for federation_id, number in session.execute(query)}


def last(session: Session, federation_id: str) -> int:
    return session.scalar(select(FederationRow.events).where(FederationRow.id == federation_id)) or 0


def delete_old(database: Database, *, most: int = 1000) -> int:
    """Delete events beyond each federation's newest; return their number, 0 when none are left.

    At most `most` of a federation are deleted at a time, so that locks stay short.
    """
    with database.read() as session:
        oldest = select(EventRow.number).where(EventRow.federation_id == FederationRow.id)
        first = oldest.order_by(EventRow.number).limit(1).scalar_subquery()
        overfull = select(FederationRow.id, first, FederationRow.events).where(
            first <= FederationRow.events - MAX_EVENTS
        )
        federations = [tuple(row) for row in session.execute(overfull)]
    deleted = 0
    for federation_id, begin, newest in federations:
        # In bounded steps, so that locks stay short.
        end = min(begin + most - 1, newest - MAX_EVENTS)
        with database.write() as session:
            statement = delete(EventRow).where(
                EventRow.federation_id == federation_id, EventRow.number <= end
            )
            deleted += session.connection().execute(statement).rowcount
    return deleted


def delete_of_rounds(session: Session, federation_id: str, before: int, *, most: int) -> int:
    """Delete up to `most` events of rounds before `before`; return their number.

    The federation's newest event stays, whatever its round: scores of an old round may come last.
    """
    old = (
        select(EventRow.number)
        .where(
            EventRow.federation_id == federation_id,
            EventRow.kind.in_(("round", "sum", "expert")),
            EventRow.data["round"].as_integer() < before,
            EventRow.number
            < select(FederationRow.events).where(FederationRow.id == federation_id).scalar_subquery(),
        )
        .order_by(EventRow.number)
        .limit(most)
    )
    numbers = list(session.scalars(old))
    if numbers:
        session.execute(
            delete(EventRow).where(EventRow.federation_id == federation_id, EventRow.number.in_(numbers))
        )
    return len(numbers)
