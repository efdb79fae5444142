"""Decide for many callers at once which of them would be let in still."""

from __future__ import annotations

from collections.abc import Iterable

from sqlalchemy import and_, or_, select
from sqlalchemy.orm import Session

from coordinator.database import now
from coordinator.enrolment.recognition import SETTINGS_ID, Member, Person
from coordinator.identity_tables import ClientKeyRow
from coordinator.tables import ClientRow, PersonToken


def still_valid(session: Session, callers: Iterable[Person | Member]) -> set[Person | Member]:
    """Return those that were not revoked, and whose token or key has not expired."""
    everybody = [*callers]
    members = [caller for caller in everybody if isinstance(caller, Member)]
    people = [caller for caller in everybody if isinstance(caller, Person)]
    moment = now(session)
    clients, keys, tokens = set[str](), set[tuple[str, str]](), {SETTINGS_ID}
    if members:
        ids = [member.client_id for member in members]
        clients.update(
            session.scalars(
                select(ClientRow.id).where(ClientRow.id.in_(ids), ClientRow.state == "enrolled")
            )
        )
        counting = and_(
            ClientKeyRow.public_key.in_([member.public_key for member in members if member.public_key]),
            or_(ClientKeyRow.expires_at.is_(None), ClientKeyRow.expires_at > moment),
        )
        rows = session.execute(select(ClientKeyRow.client_id, ClientKeyRow.public_key).where(counting))
        keys.update((client, key) for client, key in rows)
    if any(person.id != SETTINGS_ID for person in people):
        counting = and_(
            PersonToken.id.in_([person.id for person in people]),
            PersonToken.revoked_at.is_(None),
            or_(PersonToken.expires_at.is_(None), PersonToken.expires_at > moment),
        )
        tokens.update(session.scalars(select(PersonToken.id).where(counting)))
    valid: set[Person | Member] = {person for person in people if person.id in tokens}
    for member in members:
        has_key = member.public_key is None or (member.client_id, member.public_key) in keys
        if member.client_id in clients and has_key:
            valid.add(member)
    return valid
