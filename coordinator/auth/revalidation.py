"""Decide for many callers at once which of them are still valid."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import or_, select
from sqlalchemy.orm import Session

from coordinator.auth import sign_outs
from coordinator.auth.authentication import SETTINGS_ID, Member, Person
from coordinator.db.engine import database_time
from coordinator.db.tables.federations import ClientRow, PersonToken
from coordinator.db.tables.identity import ClientKeyRow


@dataclass(frozen=True, slots=True)
class Credential:
    """The credential by which a caller was authenticated.

    Attributes:
        id: of a client, of a person's token, or of a person at an identity provider.
        secret: the public key of a signing client, or the digest of an ID token.
        expires_at: the end of an ID token.
    """

    id: str
    secret: str | None = None
    expires_at: datetime | None = None


def credential_of(caller: Person | Member) -> Credential:
    if isinstance(caller, Member):
        return Credential(caller.client_id, caller.public_key)
    return Credential(caller.id, caller.token_digest, caller.expires_at)


def still_valid(
    session: Session, members: Collection[Credential], people: Collection[Credential]
) -> set[Credential]:
    """Return the credentials that are not revoked, signed out or expired."""
    now = database_time(session)
    valid = {person for person in people if person.id == SETTINGS_ID}
    if digests := {person.secret for person in people if person.secret is not None}:
        ended = sign_outs.among(session, digests)
        valid.update(
            person
            for person in people
            if person.expires_at is not None and person.expires_at > now and person.secret not in ended
        )
    if members:
        ids = {member.id for member in members}
        query = select(ClientRow.id).where(ClientRow.id.in_(ids), ClientRow.state == "enrolled")
        enrolled = set(session.scalars(query))
        keys = (
            select(ClientKeyRow.client_id, ClientKeyRow.public_key)
            .where(
                ClientKeyRow.public_key.in_(
                    {member.secret for member in members if member.secret is not None}
                )
            )
            .where(or_(ClientKeyRow.expires_at.is_(None), ClientKeyRow.expires_at > now))
        )
        valid_keys = {Credential(client_id, key) for client_id, key in session.execute(keys)}
        valid.update(
            member
            for member in members
            if member.id in enrolled and (member.secret is None or member in valid_keys)
        )
    # Tokens of the coordinator are queried only if some person is not among those found above.
    if len(people) > len(valid.intersection(people)):
        tokens = (
            select(PersonToken.id)
            .where(PersonToken.id.in_({person.id for person in people}))
            .where(PersonToken.revoked_at.is_(None))
            .where(or_(PersonToken.expires_at.is_(None), PersonToken.expires_at > now))
        )
        valid.update(Credential(token_id) for token_id in session.scalars(tokens))
    return valid
