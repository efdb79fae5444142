"""Replacement of a member's key, as an agent requests it."""

from __future__ import annotations

from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from sqlalchemy import text

from schemas.identity.documents import sign
from schemas.identity.keys import name_of
from schemas.messages.enrolment import rotation_statement
from tests.scene.coordinator import Served, Silo


def rotation(silo: Silo, new: Ed25519PrivateKey, **changes: Any) -> dict[str, Any]:
    statement = rotation_statement(
        federation_id=silo.federation_id,
        client_id=silo.client_id,
        old_key=name_of(silo.key),
        public_key=name_of(new),
    )
    signed = {
        "public_key": name_of(new),
        "proof": sign("tessera-rotation-v1", statement, new),
        "endorsement": sign("tessera-rotation-v1", statement, silo.key),
    }
    return signed | changes


def let_expire(served: Served, key: str) -> None:
    past = text("UPDATE client_keys SET expires_at = '2020-01-01 00:00:00+00:00' WHERE public_key = :k")
    with served.database.write() as session:
        session.execute(past, {"k": key})
