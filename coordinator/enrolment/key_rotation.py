"""The route with which a client replaces its key: the old key endorses the new one, which proves itself.

For an overlap both count, so that a client may be stopped anywhere in between; then the old one is over, and
all that came before it.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Annotated

from fastapi import APIRouter, Depends
from sqlalchemy.orm import Session

from coordinator.auth.authentication import Member, still_member
from coordinator.auth.permissions import AnyMember
from coordinator.db.engine import now
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

KEYS_A_DAY = 10
"""How many keys a client may get within a day: each is kept for ever, in the roster and the audit log too."""

_DAY = timedelta(days=1)
_BEFORE_ALL = datetime(1970, 1, 1, tzinfo=UTC)
"""When a key ended that may be in wrong hands: it stays over, though the database's clock be set back."""

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
        raise Forbidden("a bearer client has no key to replace: revoke it, and enrol with a key")
    _check(member, member.public_key, request)
    with database.write() as session:
        lock_federation(session, member.federation_id)
        still_member(session, member)
        return _replace(session, member, member.public_key, request)


def _check(member: Member, old: str, request: KeyRotation) -> None:
    """Check both signatures over the same words.

    Raises:
        WeakPublicKey: the new key may not be used, or one of the signatures is not what it should be.
    """
    said = rotation_statement(
        federation=member.federation_id, client=member.client_id, old_key=old, public_key=request.public_key
    )
    try:
        key = public_key(request.public_key)
    except KeyUnusable as error:
        raise WeakPublicKey(str(error)) from error
    if not is_signed("tessera-rotation-v1", said, request.proof, key):
        raise WeakPublicKey("the proof is not the new key's signature over this rotation")
    if not is_signed("tessera-rotation-v1", said, request.endorsement, public_key(old)):
        raise WeakPublicKey("the endorsement is not the old key's signature over this rotation")


def _check_pace(session: Session, client_id: str, moment: datetime) -> None:
    """Check that a client does not fill roster and audit log with its keys.

    Raises:
        RateLimited: it got as many keys as may be within a day, the one that it enrolled with included.
    """
    made = store.keys_since(session, client_id, moment - _DAY)
    if len(made) >= KEYS_A_DAY:
        wait = (made[-KEYS_A_DAY] + _DAY - moment).total_seconds()
        raise RateLimited(
            wait, f"a client gets {KEYS_A_DAY} keys a day at most; wait as long as Retry-After says"
        )


def _replace(session: Session, member: Member, old: str, request: KeyRotation) -> KeyInUse:
    moment, replaced = now(session), store.key(session, old)
    is_new = replaced.expires_at is None
    if is_new:
        _check_pace(session, member.client_id, moment)
        if not store.add_key(session, request.public_key, member.client_id):
            raise WeakPublicKey("this key was in use before; make another")
        client = store.client(session, member.client_id)
        roster.append(session, client, "rotated", request.public_key, moment, endorsement=request.endorsement)
    elif not store.is_key_of(session, request.public_key, member.client_id):
        raise KeyRevoked("this key was replaced before, and cannot name another successor")
    # A repeated request may ask for less overlap, never for more.
    over = moment + timedelta(seconds=request.overlap_seconds)
    store.end_keys(session, replaced, over if over > moment else _BEFORE_ALL, but=request.public_key)
    ends = max(moment, store.key(session, old).expires_at or over)
    if is_new:
        audit_log.append(session, "client-key-replaced", actor=member.client_id, subject=member.client_id)
        log.info("key-replaced", federation=member.federation_id)
    return KeyInUse(public_key=request.public_key, old_key_expires_at=ends)
