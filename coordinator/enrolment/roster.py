"""Maintain a federation's roster: a hash chain of enrolments, key rotations and revocations. The caller
of `append` holds the federation's lock.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal

from sqlalchemy import bindparam, select
from sqlalchemy.orm import Session

from coordinator.db.engine import run
from coordinator.db.tables.federations import ClientRow, FederationRow
from coordinator.db.tables.identity import RosterRow
from schemas.identity.documents import hash_of
from schemas.messages.enrolment import RosterEntry, RosterPage

Event = Literal["enrolled", "rotated", "revoked"]

_LINKS = select(RosterRow.version, RosterRow.hash, RosterRow.at).where(
    RosterRow.federation_id == bindparam("federation_id")
)
_NEWEST = _LINKS.order_by(RosterRow.version.desc()).limit(1)
_FINISHED = select(FederationRow.finished_at).where(FederationRow.id == bindparam("federation_id"))
_NEWEST_UNTIL = _NEWEST.where(RosterRow.at <= bindparam("until"))


@dataclass(frozen=True, slots=True)
class Link:
    """One entry of the chain: its version, the hash of its document, and its time."""

    version: int
    hash: str
    at: datetime


def append(
    session: Session,
    client: ClientRow,
    event: Event,
    key: str | None,
    now: datetime,
    *,
    endorsement: str | None = None,
) -> None:
    """Append an event of a client; `key` is its public key from now on, if it has one."""
    last = newest(session, client.federation_id)
    now = _monotonic_time(session, client.federation_id, last, now)
    entry = RosterEntry(
        federation=client.federation_id,
        version=last.version + 1 if last is not None else 1,
        event=event,
        client=client.id,
        name=client.name,
        organisation=client.organisation,
        public_key=key,
        endorsement=endorsement,
        at=now,
        previous=last.hash if last is not None else None,
    )
    document = entry.model_dump(mode="json")
    session.add(
        RosterRow(
            federation_id=client.federation_id,
            version=entry.version,
            client_id=client.id,
            at=now,
            document=document,
            hash=hash_of(document),
        )
    )
    session.flush()


def _monotonic_time(session: Session, federation_id: str, last: Link | None, now: datetime) -> datetime:
    """Return a time not before the last entry's, and after the federation's end if it has ended."""
    # The clock may have been set back, and later entries must not change the roster at the federation's end.
    finished = run(session, _FINISHED, {"federation_id": federation_id}).scalar()
    if last is not None:
        now = max(now, last.at)
    return now if finished is None else max(now, finished + timedelta(microseconds=1))


def newest(session: Session, federation_id: str, *, until: datetime | None = None) -> Link | None:
    """Return the last entry of a federation's roster, now or at a time."""
    if until is None:
        row = run(session, _NEWEST, {"federation_id": federation_id}).first()
    else:
        row = run(session, _NEWEST_UNTIL, {"federation_id": federation_id, "until": until}).first()
    return Link(*row) if row is not None else None


def page(session: Session, federation_id: str, *, after: int, limit: int) -> RosterPage:
    rows = list(
        session.scalars(
            select(RosterRow)
            .where(RosterRow.federation_id == federation_id, RosterRow.version > after)
            .order_by(RosterRow.version)
            .limit(limit + 1)
        )
    )
    return RosterPage(
        items=[row.document for row in rows[:limit]],
        next=str(rows[limit - 1].version) if len(rows) > limit else None,
    )
