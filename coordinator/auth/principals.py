"""Whom a key, a credential or a token was given to, and whether it counts still. Changes nothing.

Every request asks this, and what changes it is effective at once: nothing is remembered.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Row, bindparam, literal, select
from sqlalchemy.orm import Session

from coordinator.db.clock import clock
from coordinator.db.engine import now, run
from coordinator.db.tables.federations import ClientRow, PersonToken
from coordinator.db.tables.identity import ClientKeyRow

_COLUMNS = (
    clock(),
    ClientRow.id,
    ClientRow.name,
    ClientRow.federation_id,
    ClientRow.base_model,
    ClientRow.profile,
    ClientRow.state,
    ClientRow.last_seen_at,
)
# There is a row for nobody, too: with the time, and in the same time.
_ASKED = select(literal(1).label("one")).subquery()
_WITH_KEY = (
    select(*_COLUMNS, ClientKeyRow.public_key, ClientKeyRow.expires_at)
    .select_from(_ASKED)
    .outerjoin(ClientKeyRow, ClientKeyRow.public_key == bindparam("key"))
    .outerjoin(ClientRow, ClientRow.id == ClientKeyRow.client_id)
)
_WITH_CREDENTIAL = (
    select(*_COLUMNS)
    .select_from(_ASKED)
    .outerjoin(ClientRow, ClientRow.credential_hash == bindparam("digest"))
)
_TOKEN_COLUMNS = (
    clock(),
    PersonToken.id,
    PersonToken.role,
    PersonToken.name,
    PersonToken.expires_at,
    PersonToken.revoked_at,
)
_WITH_TOKEN = (
    select(*_TOKEN_COLUMNS)
    .select_from(_ASKED)
    .outerjoin(PersonToken, PersonToken.token_hash == bindparam("digest"))
)
_TOKEN = (
    select(*_TOKEN_COLUMNS).select_from(_ASKED).outerjoin(PersonToken, PersonToken.id == bindparam("token"))
)
_STANDING = (
    select(ClientRow.state, ClientKeyRow.public_key, ClientKeyRow.expires_at)
    .outerjoin(
        ClientKeyRow,
        (ClientKeyRow.client_id == ClientRow.id) & (ClientKeyRow.public_key == bindparam("key")),
    )
    .where(ClientRow.id == bindparam("client_id"))
)


@dataclass(frozen=True, slots=True)
class Holder:
    """A client as it is stored, with the key that it was found by (None: by a credential)."""

    id: str
    name: str
    federation_id: str
    base_model: str
    profile: dict[str, Any]
    state: str
    last_seen_at: datetime | None
    public_key: str | None = None
    key_expires_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class Token:
    """A person's token as it is stored."""

    id: str
    role: str
    name: str
    expires_at: datetime | None
    revoked_at: datetime | None


def with_key(asked: Connection, key: str) -> tuple[datetime, Holder | None]:
    """Whose public key is this, and what time is it?"""
    moment, *found = run(asked, _WITH_KEY, {"key": key}).one()
    return moment, Holder(*found) if found[0] is not None else None


def with_credential(asked: Connection, digest: str) -> tuple[datetime, Holder | None]:
    """Whose credential has this hash, and what time is it?"""
    moment, *found = run(asked, _WITH_CREDENTIAL, {"digest": digest}).one()
    return moment, Holder(*found) if found[0] is not None else None


def with_token(asked: Connection, digest: str) -> tuple[datetime, Token | None]:
    """Which person's token has this hash, and what time is it?"""
    return _token(run(asked, _WITH_TOKEN, {"digest": digest}).one())


def token(asked: Session, token_id: str) -> tuple[datetime, Token | None]:
    """Which person's token is this, and what time is it?"""
    return _token(run(asked, _TOKEN, {"token": token_id}).one())


def standing(session: Session, client_id: str, key: str | None) -> tuple[bool, bool]:
    """Is this client a member, and does this public key count for it now?"""
    found = run(session, _STANDING, {"client_id": client_id, "key": key}).first()
    if found is None:
        return False, False
    state, held, expires_at = found
    counts = held is not None and (expires_at is None or expires_at > now(session))
    return state == "enrolled", counts


def _token(row: Row[*tuple[Any, ...]]) -> tuple[datetime, Token | None]:
    moment, token_id, *columns = row
    return moment, Token(token_id, *columns) if token_id is not None else None
