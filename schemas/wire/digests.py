"""Digests of bytes: the internal form `sha256:<hex>` and the header fields of RFC 9530."""

from __future__ import annotations

import base64
import binascii
import hashlib
import re

_PREFIX = "sha256:"
_FIELD_MEMBER = re.compile(r"sha-256\s*=\s*:([A-Za-z0-9+/=]+):")


def digest_of(body: bytes | bytearray) -> str:
    return _PREFIX + hashlib.sha256(body).hexdigest()


def digest_from_hash(hexadecimal: str) -> str:
    return _PREFIX + hexadecimal


def to_field(digest: str) -> str:
    """Return a digest as the value of Content-Digest or Repr-Digest: `sha-256=:<base64>:`."""
    raw = bytes.fromhex(digest.removeprefix(_PREFIX))
    return f"sha-256=:{base64.b64encode(raw).decode()}:"


def from_field(value: str) -> str | None:
    """Parse the sha-256 member of Content-Digest or Repr-Digest; None if absent or malformed."""
    match = _FIELD_MEMBER.search(value)
    if match is None:
        return None
    try:
        raw = base64.b64decode(match.group(1), validate=True)
    except binascii.Error:
        return None
    return _PREFIX + raw.hex() if len(raw) == hashlib.sha256().digest_size else None
