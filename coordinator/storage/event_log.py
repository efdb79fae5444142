"""What happened in a federation, in an order that everyone agrees on.

Numbers are given under the federation's row lock, which is held until the commit: an event with a smaller
number is never seen after one with a larger number. Old ones are forgotten (`forget_old`, and with a round
`rounds.retention`): who resumes a stream after one of those gets what is left.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from sqlalchemy import bindparam, delete, insert, or_, select, update
from sqlalchemy.orm import Session

from coordinator.db.engine import Database, now, run
from coordinator.db.tables.federations import EventRow, FederationRow

Kind = Literal["round", "client", "alignment"]

MOST_KEPT = 10_000
"""How many events of a federation are kept, the newest; more between two tidyings."""

# What a sum or a mean changed by when one more client took part is that client's own.
_OF_OTHERS = frozenset({"bytes", "scores"})

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
    """Return the events after `number` in order; `seen_by` is the client that asks, None for a person."""
    query = select(EventRow).where(EventRow.federation_id == federation_id, EventRow.number > number)
    if seen_by is not None:
        query = query.where(or_(EventRow.client_id.is_(None), EventRow.client_id == seen_by))
    rows = session.scalars(query.order_by(EventRow.number).limit(limit))
    found = [Event(row.number, row.kind, row.data, row.client_id) for row in rows]
    return found if seen_by is None else [for_clients(event) for event in found]


def for_clients(event: Event) -> Event:
    """Return an event as clients get it: a round's bytes and scores are left out."""
    if event.kind != "round":
        return event
    left = {name: value for name, value in event.data.items() if name not in _OF_OTHERS}
    return Event(event.number, event.kind, left, event.client_id)


def numbers(session: Session, federation_ids: Collection[str]) -> dict[str, int]:
    """Return the number of the last event of each federation."""
    query = select(FederationRow.id, FederationRow.events).where(FederationRow.id.in_(federation_ids))
    return {fid: number for fid, number in session.execute(query)}


def last(session: Session, federation_id: str) -> int:
    """Give the number of the last event, 0 before the first."""
    return session.scalar(select(FederationRow.events).where(FederationRow.id == federation_id)) or 0


def forget_old(database: Database, *, most: int = 1000) -> int:
    """Delete events beyond each federation's newest; return their number, 0 when there are no more.

    At most `most` of a federation at a time, so that nobody waits for long.
    """
    with database.read() as session:
        oldest = select(EventRow.number).where(EventRow.federation_id == FederationRow.id)
        first = oldest.order_by(EventRow.number).limit(1).scalar_subquery()
        overfull = select(FederationRow.id, first, FederationRow.events).where(
            first <= FederationRow.events - MOST_KEPT
        )
        federations = [tuple(row) for row in session.execute(overfull)]
    forgotten = 0
    for fid, begin, newest in federations:
        end = min(begin + most - 1, newest - MOST_KEPT)
        with database.write() as session:
            gone = delete(EventRow).where(EventRow.federation_id == fid, EventRow.number <= end)
            forgotten += session.connection().execute(gone).rowcount
    return forgotten


def forget_of_rounds(session: Session, federation_id: str, before: int, *, most: int) -> int:
    """Delete some events of rounds with a smaller number; return how many.

    The federation's newest event stays, whatever its round: scores of an old round may come last.
    """
    old = (
        select(EventRow.number)
        .where(
            EventRow.federation_id == federation_id,
            EventRow.kind == "round",
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
