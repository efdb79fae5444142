"""A federation's roster: who entered and left, as a chain in which nothing can be changed unnoticed.

Whoever appends holds the federation's lock.
"""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from sqlalchemy import select
from sqlalchemy.orm import Session

from coordinator.identity_tables import RosterRow
from coordinator.tables import ClientRow
from schemas.identity.documents import hash_of
from schemas.messages.enrolment import RosterEntry, RosterPage

Event = Literal["enrolled", "rotated", "revoked"]


def append(
    session: Session,
    client: ClientRow,
    event: Event,
    key: str | None,
    moment: datetime,
    *,
    endorsement: str | None = None,
) -> None:
    """Write down what became of a client; `key` is its public key from now on, if it has one."""
    newest = select(RosterRow).where(RosterRow.federation_id == client.federation_id)
    last = session.scalar(newest.order_by(RosterRow.version.desc()).limit(1))
    entry = RosterEntry(
        federation=client.federation_id,
        version=last.version + 1 if last is not None else 1,
        event=event,
        client=client.id,
        name=client.name,
        organisation=client.organisation,
        public_key=key,
        endorsement=endorsement,
        at=moment,
        previous=last.hash if last is not None else None,
    )
    document = entry.model_dump(mode="json")
    session.add(
        RosterRow(
            federation_id=client.federation_id,
            version=entry.version,
            client_id=client.id,
            at=moment,
            document=document,
            hash=hash_of(document),
        )
    )
    session.flush()


def newest(session: Session, fid: str, *, until: datetime | None = None) -> RosterRow | None:
    """Which is the last link of a federation's roster, now or as it was at a moment?"""
    query = select(RosterRow).where(RosterRow.federation_id == fid)
    if until is not None:
        query = query.where(RosterRow.at <= until)
    return session.scalar(query.order_by(RosterRow.version.desc()).limit(1))


def page(session: Session, fid: str, *, after: int, limit: int) -> RosterPage:
    """Which links follow version `after`?"""
    rows = list(
        session.scalars(
            select(RosterRow)
            .where(RosterRow.federation_id == fid, RosterRow.version > after)
            .order_by(RosterRow.version)
            .limit(limit + 1)
        )
    )
    return RosterPage(
        items=[row.document for row in rows[:limit]],
        next=str(rows[limit - 1].version) if len(rows) > limit else None,
    )
