"""Find names in use that can be taken for each other: they were stored before names were reserved."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby

from sqlalchemy import CompoundSelect, Select, or_, select, union_all
from sqlalchemy.orm import Session

from coordinator.db.engine import database_time
from coordinator.db.tables.federations import ClientRow, EnrolmentTokenRow, FederationRow, PersonToken
from coordinator.enrolment.names import is_unused
from schemas.messages.names import printable
from schemas.names.spelling import name_keys

Named = tuple[str, str]
"""A name, and the id that has it."""


def look_alikes(session: Session) -> Iterator[str]:
    """Yield for each pair of names that resemble each other a sentence that says what to do."""
    federations = [(row.name, row.id) for row in session.execute(_FEDERATIONS)]
    for first, second in _pairs(federations):
        yield f"federations {first} and {second} look alike; use their ids, and finish one that is a mistake"
    for first, second in _pairs((row.name, row.id) for row in session.execute(_valid_people(session))):
        yield (
            f"tokens of people {first} and {second} look alike; revoke one with `tessera token revoke`, and "
            "create another"
        )
    shown = {federation_id: printable(name) for name, federation_id in federations}
    rows = session.execute(_members(session)).all()
    for federation_id, group in groupby(rows, key=lambda row: row.federation_id):
        members = list(group)
        where = f"federation {shown[federation_id]!r} ({federation_id})"
        for first, second in _pairs((row.name, row.id) for row in members):
            yield (
                f"{where}: clients {first} and {second} look alike; revoke one with `tessera client revoke`, "
                "and enrol it again under another name"
            )
        organisations = {row.organisation: row.id for row in members if row.organisation is not None}
        for first, second in _pairs(organisations.items()):
            yield (
                f"{where}: the organisations of {first} and {second} look alike and count as one; if they "
                "are two, revoke one client, and enrol it again with another organisation"
            )


_FEDERATIONS = select(FederationRow.name, FederationRow.id).order_by(FederationRow.id)


def _valid_people(session: Session) -> Select[str, str]:
    expires = or_(PersonToken.expires_at.is_(None), PersonToken.expires_at > database_time(session))
    return (
        select(PersonToken.name, PersonToken.id)
        .where(PersonToken.revoked_at.is_(None), expires)
        .order_by(PersonToken.id)
    )


def _members(session: Session) -> CompoundSelect[str, str, str, str | None]:
    """Select federation, id, name and organisation of clients and unused enrolment tokens."""
    clients = select(ClientRow.federation_id, ClientRow.id, ClientRow.name, ClientRow.organisation)
    tokens = select(
        EnrolmentTokenRow.federation_id,
        EnrolmentTokenRow.id,
        EnrolmentTokenRow.client_name,
        EnrolmentTokenRow.organisation,
    ).where(*is_unused(session))
    return union_all(clients, tokens).order_by("federation_id", "id")


def _pairs(named: Iterable[Named]) -> Iterator[tuple[str, str]]:
    """Yield the names that resemble an earlier one in another spelling, with that one."""
    first: dict[str, Named] = {}
    spellings: set[str] = set()
    for name, row_id in named:
        if name in spellings:
            continue
        spellings.add(name)
        keys = name_keys(name)
        earlier = next((first[key] for key in sorted(keys) if key in first), None)
        if earlier is not None:
            yield _shown(earlier), _shown((name, row_id))
        for key in keys:
            first.setdefault(key, (name, row_id))


def _shown(named: Named) -> str:
    name, row_id = named
    return f"{printable(name)!r} ({row_id})"
