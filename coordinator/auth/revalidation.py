"""Decide for many callers at once which of them are still valid."""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime

from sqlalchemy import or_, select
from sqlalchemy.orm import Session

from coordinator.auth.authentication import SETTINGS_ID, Member, Person
from coordinator.db.engine import database_time
from coordinator.db.tables.federations import ClientRow, PersonToken
from coordinator.db.tables.identity import ClientKeyRow

Credential = tuple[str, str | None]
"""A person's token id or a client id, with the public key of a signing client, or the end of an ID token."""


def credential_of(caller: Person | Member) -> Credential:
    if isinstance(caller, Member):
        return caller.client_id, caller.public_key
    return caller.id, caller.expires_at.isoformat() if caller.expires_at is not None else None


def still_valid(
    session: Session, members: Collection[Credential], people: Collection[Credential]
) -> set[Credential]:
    """Return the credentials that are neither revoked nor expired."""
    now = database_time(session)
    valid = {
        (person, until)
        for person, until in people
        if person == SETTINGS_ID or (until is not None and datetime.fromisoformat(until) > now)
    }
    if members:
        ids = {client_id for client_id, _ in members}
        query = select(ClientRow.id).where(ClientRow.id.in_(ids), ClientRow.state == "enrolled")
        enrolled = set(session.scalars(query))
        keys = (
            select(ClientKeyRow.client_id, ClientKeyRow.public_key)
            .where(ClientKeyRow.public_key.in_({key for _, key in members if key is not None}))
            .where(or_(ClientKeyRow.expires_at.is_(None), ClientKeyRow.expires_at > now))
        )
        valid_keys: set[Credential] = {(client_id, key) for client_id, key in session.execute(keys)}
        valid.update(
            member
            for member in members
            if member[0] in enrolled and (member[1] is None or member in valid_keys)
        )
    if len(people) > len(valid.intersection(people)):
        tokens = (
            select(PersonToken.id)
            .where(PersonToken.id.in_({token_id for token_id, _ in people}))
            .where(PersonToken.revoked_at.is_(None))
            .where(or_(PersonToken.expires_at.is_(None), PersonToken.expires_at > now))
        )
        valid.update((token_id, None) for token_id in session.scalars(tokens))
    return valid
