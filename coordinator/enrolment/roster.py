"""A federation's roster: who entered and left, as a chain in which nothing can be changed unnoticed.

Whoever appends holds the federation's lock.
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
    RosterRow.federation_id == bindparam("fid")
)
_NEWEST = _LINKS.order_by(RosterRow.version.desc()).limit(1)
_FINISHED = select(FederationRow.finished_at).where(FederationRow.id == bindparam("fid"))
_NEWEST_UNTIL = _NEWEST.where(RosterRow.at <= bindparam("until"))


@dataclass(frozen=True, slots=True)
class Link:
    """One link of the chain: its number, the hash of its document, and when it was written."""

    version: int
    hash: str
    at: datetime


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
    last = newest(session, client.federation_id)
    moment = _in_order(session, client.federation_id, last, moment)
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


def _in_order(session: Session, fid: str, last: Link | None, moment: datetime) -> datetime:
    """Give a moment that is not before the last link's, and after the federation's end if that was.

    The clock may have stepped back; what the roster was at the end must not change with what comes later.
    """
    finished = run(session, _FINISHED, {"fid": fid}).scalar()
    if last is not None:
        moment = max(moment, last.at)
    return moment if finished is None else max(moment, finished + timedelta(microseconds=1))


def newest(session: Session, fid: str, *, until: datetime | None = None) -> Link | None:
    """Which is the last link of a federation's roster, now or as it was at a moment?"""
    if until is None:
        found = run(session, _NEWEST, {"fid": fid}).first()
    else:
        found = run(session, _NEWEST_UNTIL, {"fid": fid, "until": until}).first()
    return Link(*found) if found is not None else None


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
