"""Which client a key or a credential was given to, and whether it is a member still. Changes nothing.

Every request of a client asks this, and what changes it is effective at once: nothing is remembered.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import bindparam, select
from sqlalchemy.orm import Session

from coordinator.database import now, run
from coordinator.identity_tables import ClientKeyRow
from coordinator.tables import ClientRow

_COLUMNS = (
    ClientRow.id,
    ClientRow.name,
    ClientRow.federation_id,
    ClientRow.base_model,
    ClientRow.profile,
    ClientRow.state,
    ClientRow.last_seen_at,
)
_WITH_KEY = (
    select(*_COLUMNS, ClientKeyRow.public_key, ClientKeyRow.expires_at)
    .join(ClientKeyRow, ClientKeyRow.client_id == ClientRow.id)
    .where(ClientKeyRow.public_key == bindparam("key"))
)
_WITH_CREDENTIAL = select(*_COLUMNS).where(ClientRow.credential_hash == bindparam("digest"))
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


def with_key(session: Session, key: str) -> Holder | None:
    """Whose public key is this?"""
    found = run(session, _WITH_KEY, {"key": key}).first()
    return Holder(*found) if found is not None else None


def with_credential(session: Session, digest: str) -> Holder | None:
    """Whose credential has this hash?"""
    found = run(session, _WITH_CREDENTIAL, {"digest": digest}).first()
    return Holder(*found) if found is not None else None


def standing(session: Session, client_id: str, key: str | None) -> tuple[bool, bool]:
    """Is this client a member, and does this public key count for it now?"""
    found = run(session, _STANDING, {"client_id": client_id, "key": key}).first()
    if found is None:
        return False, False
    state, held, expires_at = found
    counts = held is not None and (expires_at is None or expires_at > now(session))
    return state == "enrolled", counts
