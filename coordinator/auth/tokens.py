"""Make and derive secrets. Knows no table: a secret is shown once, and only its hash is ever stored."""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets

from coordinator.auth.authentication import CLIENT_PREFIX, hash_of
from schemas.identity.enrolment_token import EnrolmentTokenText
from schemas.identity.keys import encode
from schemas.messages.enrolment import EnrolmentRequest
from schemas.messages.tokens import PersonRole

_PERSON_PREFIXES: dict[PersonRole, str] = {
    "admin": "tsr_adm_",
    "operator": "tsr_op_",
    "auditor": "tsr_aud_",
}
ENROLMENT_PREFIX = "enr_"
_PURPOSE = b"tessera client credential v1\0"


def new_person_token(role: PersonRole) -> str:
    """Make a person's token: 256 random bits behind a prefix that secret scanners can find."""
    return _PERSON_PREFIXES[role] + secrets.token_urlsafe(32)


def new_enrolment_token(row_id: str, server: str) -> EnrolmentTokenText:
    """Make a one-time token for the row of this id; `server` is the thumbprint of this coordinator's key."""
    return EnrolmentTokenText(row_id.removeprefix(ENROLMENT_PREFIX), encode(secrets.token_bytes(32)), server)


def has_secret(token: EnrolmentTokenText, digest: str) -> bool:
    """Compare a token's secret with a hash, in constant time."""
    return hmac.compare_digest(hash_of(token.secret), digest)


def credential_for(request: EnrolmentRequest) -> str | None:
    """Make a bearer client's credential: derived when it can prove a repeated request, else random.

    None for a client with a key.

    The derivation needs the one-time token and the client's own 32 bytes; neither is stored, so a copy of
    the database derives nothing, and the same request gets the same answer.
    """
    if request.public_key is not None:
        return None
    if request.retry_key is None:
        return CLIENT_PREFIX + secrets.token_urlsafe(32)
    key = hmac.digest(request.token.encode(), _PURPOSE + _retry_key(request.retry_key), hashlib.sha256)
    return CLIENT_PREFIX + base64.urlsafe_b64encode(key).decode().rstrip("=")


def fingerprint(request: EnrolmentRequest) -> str | None:
    """Recognise a repeated request: same retry_key, same name, same profile. None without a retry_key."""
    if request.retry_key is None:
        return None
    said = f"{request.name}\0{request.profile.model_dump_json()}".encode()
    return hmac.new(_retry_key(request.retry_key), said, hashlib.sha256).hexdigest()


def _retry_key(text: str) -> bytes:
    return base64.urlsafe_b64decode(text.rstrip("=") + "=")
