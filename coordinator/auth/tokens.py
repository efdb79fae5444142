"""Generate and derive secrets. A secret is shown once; only its hash is stored."""

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
    """Generate a person's token: 256 random bits behind a prefix for secret scanners."""
    return _PERSON_PREFIXES[role] + secrets.token_urlsafe(32)


def new_enrolment_token(row_id: str, server: str) -> EnrolmentTokenText:
    """Generate an enrolment token for a row id; `server` is the thumbprint of this coordinator's key."""
    return EnrolmentTokenText(row_id.removeprefix(ENROLMENT_PREFIX), encode(secrets.token_bytes(32)), server)


def has_secret(token: EnrolmentTokenText, digest: str) -> bool:
    """Compare a token's secret with a stored hash, in constant time."""
    return hmac.compare_digest(hash_of(token.secret), digest)


def credential_for(request: EnrolmentRequest) -> str | None:
    """Return a bearer client's credential; None for a client with a key.

    With a `retry_key` it is derived from the enrolment token and the client's 32 bytes; without one it is
    random.
    """
    if request.public_key is not None:
        return None
    if request.retry_key is None:
        return CLIENT_PREFIX + secrets.token_urlsafe(32)
    # Derived, so that a repeated request gets the same answer. Neither input is stored, so that a copy of
    # the database derives nothing.
    key = hmac.digest(request.token.encode(), _PURPOSE + _retry_key(request.retry_key), hashlib.sha256)
    return CLIENT_PREFIX + base64.urlsafe_b64encode(key).decode().rstrip("=")


def fingerprint(request: EnrolmentRequest) -> str | None:
    """Return a fingerprint of `retry_key`, name and profile, by which a repeat is recognised; None
    without one.
    """
    if request.retry_key is None:
        return None
    document = f"{request.name}\0{request.profile.model_dump_json()}".encode()
    return hmac.new(_retry_key(request.retry_key), document, hashlib.sha256).hexdigest()


def _retry_key(text: str) -> bytes:
    return base64.urlsafe_b64decode(text.rstrip("=") + "=")
