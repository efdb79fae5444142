"""Route that replaces a client's key: the old key endorses the new one, which proves possession. Both are
valid for an overlap; then the old key and its predecessors end.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Annotated

from fastapi import APIRouter, Depends
from sqlalchemy.orm import Session

from coordinator.auth.authentication import Member, still_member
from coordinator.auth.permissions import AnyMember
from coordinator.db.engine import database_time
from coordinator.db.federation_lock import lock_federation
from coordinator.enrolment import roster, store
from coordinator.errors import (
    AuthMissing,
    Forbidden,
    Invalid,
    JsonMalformed,
    KeyRevoked,
    RateLimited,
    WeakPublicKey,
)
from coordinator.http.dependencies import TheDatabase
from coordinator.http.json_body import json_body, takes
from coordinator.http.problems import answers
from coordinator.observability.logs import logger
from coordinator.storage import audit_log
from schemas.identity.documents import is_signed
from schemas.identity.keys import KeyUnusable, public_key
from schemas.messages.enrolment import KeyInUse, KeyRotation, rotation_statement

router = APIRouter(tags=["enrolment"])
log = logger(__name__)

MAX_KEYS_PER_DAY = 10
"""New keys of a client within a day: each is stored for ever, also in the roster and the audit log."""

_DAY = timedelta(days=1)
# End of a key without overlap: it stays expired even if the database's clock is set back.
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

_EXAMPLE = {
    "public_key": "11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo",
    "proof": "...",
    "endorsement": "...",
    "overlap_seconds": 3600,
}


@router.put(
    "/v1/me/key",
    openapi_extra=takes(KeyRotation, example=_EXAMPLE),
    responses=answers(JsonMalformed, AuthMissing, Forbidden, WeakPublicKey, KeyRevoked, Invalid, RateLimited),
)
def replace_key(
    member: AnyMember,
    request: Annotated[KeyRotation, Depends(json_body(KeyRotation))],
    database: TheDatabase,
) -> KeyInUse:
    """Replace the key that signs this request; a repeated request gets the same answer."""
    if member.public_key is None:
        raise Forbidden("a bearer client has no key to replace; have it revoked and enrol again with a key")
    _check(member, member.public_key, request)
    with database.write() as session:
        lock_federation(session, member.federation_id)
        still_member(session, member)
        return _replace(session, member, member.public_key, request)


def _check(member: Member, old: str, request: KeyRotation) -> None:
    """Verify the proof and the endorsement over the rotation statement.

    Raises:
        WeakPublicKey: the new key may not be used, or a signature is wrong.
    """
    statement = rotation_statement(
        federation_id=member.federation_id,
        client_id=member.client_id,
        old_key=old,
        public_key=request.public_key,
    )
    try:
        key = public_key(request.public_key)
    except KeyUnusable as error:
        raise WeakPublicKey(str(error)) from error
    if not is_signed("tessera-rotation-v1", statement, request.proof, key):
        raise WeakPublicKey(
            "the proof is not the new key's signature over this rotation; sign the rotation statement with it"
        )
    if not is_signed("tessera-rotation-v1", statement, request.endorsement, public_key(old)):
        raise WeakPublicKey(
            "the endorsement is not the old key's signature over this rotation; sign the statement with it"
        )


def _check_pace(session: Session, client_id: str, now: datetime) -> None:
    """Raise RateLimited if a client got its daily number of keys, the one at enrolment included."""
    key_times = store.key_times_since(session, client_id, now - _DAY)
    if len(key_times) >= MAX_KEYS_PER_DAY:
        wait = (key_times[-MAX_KEYS_PER_DAY] + _DAY - now).total_seconds()
        raise RateLimited(
            wait, f"a client gets at most {MAX_KEYS_PER_DAY} keys a day; retry after Retry-After seconds"
        )


def _replace(session: Session, member: Member, old: str, request: KeyRotation) -> KeyInUse:
    now, replaced = database_time(session), store.key(session, old)
    # A key without an end was not replaced before; otherwise this request is a repetition.
    is_new = replaced.expires_at is None
    if is_new:
        _check_pace(session, member.client_id, now)
        # Keys of all clients are unique, also those that are no longer valid.
        if not store.add_key(session, request.public_key, member.client_id):
            raise WeakPublicKey("this key was used before; generate a new one")
        client = store.client(session, member.client_id)
        roster.append(session, client, "rotated", request.public_key, now, endorsement=request.endorsement)
    elif not store.is_key_of(session, request.public_key, member.client_id):
        raise KeyRevoked("this key was already replaced by another one; sign with its successor")
    # A repeated request may shorten the overlap, never extend it.
    overlap_end = now + timedelta(seconds=request.overlap_seconds)
    store.expire_keys(
        session, replaced, overlap_end if overlap_end > now else _EPOCH, except_key=request.public_key
    )
    old_key_end = max(now, store.key(session, old).expires_at or overlap_end)
    if is_new:
        audit_log.append(session, "client-key-replaced", actor=member.client_id, subject=member.client_id)
        log.info("key-replaced", federation=member.federation_id)
    return KeyInUse(public_key=request.public_key, old_key_expires_at=old_key_end)
