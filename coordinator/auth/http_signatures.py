"""Decide whose signature a request carries, from its header fields alone: no byte of the body is read.

A key that nobody has is checked as thoroughly as one that somebody has, and answered the same.
"""

from __future__ import annotations

import hashlib
from datetime import datetime

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from fastapi import Request
from sqlalchemy import Connection

from coordinator.auth import principals
from coordinator.auth.principals import Holder
from coordinator.errors import (
    AuthorityUnknown,
    ClockSkew,
    DigestMissing,
    KeyRevoked,
    SignatureInvalid,
    SignatureProfileBroken,
)
from coordinator.settings import Settings
from schemas.identity.keys import public_key
from schemas.identity.signed_requests import WHEN_PRESENT, ProfileBroken, SignedRequest, Target, read
from schemas.wire.digests import from_field

_NOBODY = Ed25519PrivateKey.from_private_bytes(hashlib.sha256(b"nobody").digest()).public_key()


def is_signed(request: Request) -> bool:
    """Say whether a request claims to be signed."""
    return "signature" in request.headers or "signature-input" in request.headers


def read_signature(request: Request) -> SignedRequest:
    """Read a request's signature, unverified.

    Raises:
        SignatureProfileBroken: it is not of the profile, or leaves the body, Prefer or Range out.
        DigestMissing: there is a body and no digest of it.
    """
    fields = [request.headers.getlist(name) for name in ("signature-input", "signature")]
    if [len(lines) for lines in fields] != [1, 1] or "authorization" in request.headers:
        raise SignatureProfileBroken("send Signature-Input and Signature once each, and no Authorization")
    try:
        signed = read(fields[0][0], fields[1][0])
    except ProfileBroken as error:
        raise SignatureProfileBroken(str(error)) from error
    digest = _digest(request)
    if _has_body(request):
        if digest is None or from_field(digest) is None:
            raise DigestMissing
        if not signed.covers_body:
            raise SignatureProfileBroken('a request with a body covers "content-digest"')
    elif signed.covers_body and digest is None:
        raise DigestMissing
    for name in WHEN_PRESENT:
        if signed.covers(name) != (name in request.headers):
            raise SignatureProfileBroken(f'cover "{name}" exactly when the request has this field')
    return signed


def verify(
    asked: Connection, request: Request, signed: SignedRequest, settings: Settings
) -> tuple[Holder, datetime]:
    """Find out whose signature this is, and when it was looked at.

    Raises:
        AuthorityUnknown: it was made for a server of another name.
        ClockSkew: its time is over, or has not come.
        SignatureInvalid: it is nobody's.
        KeyRevoked: it is somebody's who was shut out, or of a key that was replaced.
    """
    host = request.headers.get("host", "")
    if not settings.goes_by(host):
        raise AuthorityUnknown("TESSERA_PUBLIC_NAMES must have the name that clients call this server by")
    moment, holder = principals.with_key(asked, signed.keyid)
    check_timely(signed, moment)
    key = _NOBODY if holder is None else public_key(signed.keyid)
    if not signed.is_by(key, _target(request, host)) or holder is None:
        raise SignatureInvalid
    expires_at = holder.key_expires_at
    if holder.state != "enrolled" or (expires_at is not None and expires_at <= moment):
        raise KeyRevoked
    return holder, moment


def check_timely(signed: SignedRequest, moment: datetime) -> None:
    """Check that a signature's time is `moment`, by the database's clock.

    Raises:
        ClockSkew: its time is over, or has not come.
    """
    if not signed.is_timely(moment.timestamp()):
        raise ClockSkew(server_time=moment.isoformat().replace("+00:00", "Z"))


def _target(request: Request, host: str) -> Target:
    return Target(
        method=request.method,
        authority=host,
        path=request.scope["raw_path"].decode("latin-1"),
        query=request.scope["query_string"].decode("latin-1"),
        content_digest=_digest(request),
        prefer=_field(request, "prefer"),
        range=_field(request, "range"),
    )


def _digest(request: Request) -> str | None:
    return _field(request, "content-digest")


def _field(request: Request, name: str) -> str | None:
    """Return a header field as it is signed: its lines in one, None without any (RFC 9421, section 2.1)."""
    lines = request.headers.getlist(name)
    return ", ".join(line.strip() for line in lines) if lines else None


def _has_body(request: Request) -> bool:
    return "transfer-encoding" in request.headers or request.headers.get("content-length", "0") != "0"
