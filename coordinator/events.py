"""What happened in a federation, in an order that everyone agrees on.

Numbers are given under the federation's row lock, which is held until the commit: an event with a smaller
number is never seen after one with a larger number.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from sqlalchemy import bindparam, insert, or_, select, update
from sqlalchemy.orm import Session

from coordinator.database import now, run
from coordinator.tables import EventRow, FederationRow

Kind = Literal["round", "client", "alignment"]

_NUMBER = (
    update(FederationRow)
    .where(FederationRow.id == bindparam("fid"))
    .values(events=FederationRow.events + 1)
    .returning(FederationRow.events)
)
_EVENT = insert(EventRow)


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened."""

    number: int
    kind: str
    data: dict[str, Any]
    client_id: str | None = None

    def is_for(self, client_id: str | None) -> bool:
        """Whether a client may see it; None is a person, who sees all."""
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
    """Write down an event of a moment (None = now).

    With `client_id` it is that client's own, and other clients never see it.
    """
    given = run(session, _NUMBER, {"fid": federation_id}).first()
    if given is None:
        raise LookupError("an event of a federation that does not exist")
    run(
        session,
        _EVENT,
        {
            "federation_id": federation_id,
            "number": given.events,
            "kind": kind,
            "client_id": client_id,
            "data": data,
            "created_at": at or now(session),
        },
    )
    return int(given.events)


def since(
    session: Session, federation_id: str, number: int, *, seen_by: str | None = None, limit: int = 100
) -> list[Event]:
    """Give the events after `number` in order; `seen_by` is the client that asks, None for a person."""
    query = select(EventRow).where(EventRow.federation_id == federation_id, EventRow.number > number)
    if seen_by is not None:
        query = query.where(or_(EventRow.client_id.is_(None), EventRow.client_id == seen_by))
    rows = session.scalars(query.order_by(EventRow.number).limit(limit))
    return [Event(row.number, row.kind, row.data, row.client_id) for row in rows]


def numbers(session: Session, federation_ids: Collection[str]) -> dict[str, int]:
    """Which is the number of the last event of each federation?"""
    query = select(FederationRow.id, FederationRow.events).where(FederationRow.id.in_(federation_ids))
    return {fid: number for fid, number in session.execute(query)}


def last(session: Session, federation_id: str) -> int:
    """Give the number of the last event, 0 before the first."""
    return session.scalar(select(FederationRow.events).where(FederationRow.id == federation_id)) or 0
