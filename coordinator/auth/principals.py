"""Look up the principal of a key, credential or token, and whether it is still valid. Nothing is cached:
a revocation is effective with the next request.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Row, bindparam, literal, select
from sqlalchemy.orm import Session

from coordinator.db.clock import clock
from coordinator.db.engine import database_time, run
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
# Outer joins return a row for an unknown key too, with the clock and in the same time.
_SINGLE = select(literal(1).label("single")).subquery()
_WITH_KEY = (
    select(*_COLUMNS, ClientKeyRow.public_key, ClientKeyRow.expires_at)
    .select_from(_SINGLE)
    .outerjoin(ClientKeyRow, ClientKeyRow.public_key == bindparam("key"))
    .outerjoin(ClientRow, ClientRow.id == ClientKeyRow.client_id)
)
_WITH_CREDENTIAL = (
    select(*_COLUMNS)
    .select_from(_SINGLE)
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
    .select_from(_SINGLE)
    .outerjoin(PersonToken, PersonToken.token_hash == bindparam("digest"))
)
_TOKEN = (
    select(*_TOKEN_COLUMNS).select_from(_SINGLE).outerjoin(PersonToken, PersonToken.id == bindparam("token"))
)
_MEMBERSHIP = (
    select(ClientRow.state, ClientKeyRow.public_key, ClientKeyRow.expires_at)
    .outerjoin(
        ClientKeyRow,
        (ClientKeyRow.client_id == ClientRow.id) & (ClientKeyRow.public_key == bindparam("key")),
    )
    .where(ClientRow.id == bindparam("client_id"))
)


@dataclass(frozen=True, slots=True)
class StoredClient:
    """A stored client, with the key that it was looked up by (None: by a credential)."""

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
    """A stored token of a person."""

    id: str
    role: str
    name: str
    expires_at: datetime | None
    revoked_at: datetime | None


def client_by_key(connection: Connection, key: str) -> tuple[datetime, StoredClient | None]:
    """Return the database time and the client of a public key, if any."""
    now, *columns = run(connection, _WITH_KEY, {"key": key}).one()
    return now, StoredClient(*columns) if columns[0] is not None else None


def client_by_credential(connection: Connection, digest: str) -> tuple[datetime, StoredClient | None]:
    """Return the database time and the client of a bearer credential's hash, if any."""
    now, *columns = run(connection, _WITH_CREDENTIAL, {"digest": digest}).one()
    return now, StoredClient(*columns) if columns[0] is not None else None


def token_by_hash(connection: Connection, digest: str) -> tuple[datetime, Token | None]:
    """Return the database time and the person's token with this hash, if any."""
    return _token(run(connection, _WITH_TOKEN, {"digest": digest}).one())


def token_by_id(session: Session, token_id: str) -> tuple[datetime, Token | None]:
    return _token(run(session, _TOKEN, {"token": token_id}).one())


def membership(session: Session, client_id: str, key: str | None) -> tuple[bool, bool]:
    """Return whether a client is enrolled, and whether this public key is valid for it now."""
    row = run(session, _MEMBERSHIP, {"client_id": client_id, "key": key}).first()
    if row is None:
        return False, False
    state, stored_key, expires_at = row
    is_key_valid = stored_key is not None and (expires_at is None or expires_at > database_time(session))
    return state == "enrolled", is_key_valid


def _token(row: Row[*tuple[Any, ...]]) -> tuple[datetime, Token | None]:
    now, token_id, *columns = row
    return now, Token(token_id, *columns) if token_id is not None else None
