"""Verify a request's HTTP message signature (RFC 9421) from its header fields, before the body is read.
An unknown key costs the same checks and gets the same error as a known one.
"""

from __future__ import annotations

import hashlib
from datetime import datetime

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from fastapi import Request
from sqlalchemy import Connection

from coordinator.auth import principals
from coordinator.auth.principals import StoredClient
from coordinator.errors import (
    AuthorityUnknown,
    ClockSkew,
    DigestMissing,
    KeyRevoked,
    SignatureInvalid,
    SignatureProfileBroken,
)
from coordinator.settings import Settings
from schemas.identity.addresses import equivalent_authorities
from schemas.identity.keys import public_key
from schemas.identity.signed_requests import WHEN_PRESENT, ProfileBroken, SignedRequest, Target, read
from schemas.wire.digests import from_field

_UNKNOWN_KEY = Ed25519PrivateKey.from_private_bytes(hashlib.sha256(b"nobody").digest()).public_key()


def is_signed(request: Request) -> bool:
    return "signature" in request.headers or "signature-input" in request.headers


def read_signature(request: Request) -> SignedRequest:
    """Parse a request's signature without verifying it.

    Raises:
        SignatureProfileBroken: the signature does not follow the profile, or does not cover the body,
            Prefer or Range.
        DigestMissing: the request has a body and no digest of it.
    """
    fields = [request.headers.getlist(name) for name in ("signature-input", "signature")]
    # Of two signatures, or a signature and a token, a proxy may have checked the other one.
    if [len(lines) for lines in fields] != [1, 1] or "authorization" in request.headers:
        raise SignatureProfileBroken(
            "malformed signature fields; send Signature-Input and Signature once each, and no Authorization"
        )
    try:
        signed = read(fields[0][0], fields[1][0])
    except ProfileBroken as error:
        raise SignatureProfileBroken(str(error)) from error
    digest = _digest(request)
    if _has_body(request):
        if digest is None or from_field(digest) is None:
            raise DigestMissing
        if not signed.covers_body:
            raise SignatureProfileBroken(
                'the signature does not cover the body; add "content-digest" to its components'
            )
    elif signed.covers_body and digest is None:
        raise DigestMissing
    for name in WHEN_PRESENT:
        if signed.covers(name) != (name in request.headers):
            raise SignatureProfileBroken(
                f'the signature must cover "{name}" exactly when the request has this field'
            )
    return signed


def verify(
    connection: Connection, request: Request, signed: SignedRequest, settings: Settings
) -> tuple[StoredClient, datetime]:
    """Return the client that signed a request, and the database time of the check.

    Raises:
        AuthorityUnknown: signed for a server of another name.
        ClockSkew: the signature has expired or lies in the future.
        SignatureInvalid: the key is unknown or the signature is wrong.
        KeyRevoked: the client was revoked or the key replaced.
    """
    host = request.headers.get("host", "")
    if not settings.goes_by(host):
        raise AuthorityUnknown("the Host field is not in TESSERA_PUBLIC_NAMES; ask the operator to add it")
    now, client = principals.client_by_key(connection, signed.keyid)
    check_timely(signed, now)
    # An unknown key is verified like a known one: time must not tell which keys are enrolled.
    key = _UNKNOWN_KEY if client is None else public_key(signed.keyid)
    # A proxy may have added or removed a default port, so that several authorities may be the signed one.
    targets = [_target(request, authority, settings.root_path) for authority in equivalent_authorities(host)]
    if not any(signed.is_by(key, target) for target in targets) or client is None:
        raise SignatureInvalid(_covered(settings.root_path))
    expires_at = client.key_expires_at
    if client.state != "enrolled" or (expires_at is not None and expires_at <= now):
        raise KeyRevoked
    return client, now


def check_timely(signed: SignedRequest, now: datetime) -> None:
    """Raise ClockSkew unless a signature is valid at `now`, by the database's clock."""
    if not signed.is_timely(now.timestamp()):
        raise ClockSkew(server_time=now.isoformat().replace("+00:00", "Z"))


def _covered(root_path: str) -> str:
    """Describe what a signature must cover here, for clients behind a proxy that changes it."""
    paths = f"paths begin with {root_path}/v1" if root_path else "paths begin with /v1, without a root path"
    return (
        "the signature is wrong, or its key is not enrolled; it covers host, path and query as the client "
        f"sends them, and no proxy may change host or query; here {paths} (TESSERA_ROOT_PATH)"
    )


def _target(request: Request, authority: str, root_path: str) -> Target:
    """Return what a client signed that asked for this request; the root path was removed on arrival."""
    return Target(
        method=request.method,
        authority=authority,
        path=root_path + request.scope["raw_path"].decode("latin-1"),
        query=request.scope["query_string"].decode("latin-1"),
        content_digest=_digest(request),
        prefer=_field(request, "prefer"),
        range=_field(request, "range"),
    )


def _digest(request: Request) -> str | None:
    return _field(request, "content-digest")


def _field(request: Request, name: str) -> str | None:
    """Return a header field in its signed form, lines joined (RFC 9421, section 2.1); None if absent."""
    lines = request.headers.getlist(name)
    return ", ".join(line.strip() for line in lines) if lines else None


def _has_body(request: Request) -> bool:
    return "transfer-encoding" in request.headers or request.headers.get("content-length", "0") != "0"
