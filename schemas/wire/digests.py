"""Digests of bytes, in our form (`sha256:<hex>`) and in the form of RFC 9530 header fields."""

from __future__ import annotations

import base64
import binascii
import hashlib
import re

_PREFIX = "sha256:"
_FIELD_MEMBER = re.compile(r"sha-256\s*=\s*:([A-Za-z0-9+/=]+):")


def digest_of(body: bytes | bytearray) -> str:
    """Name bytes by their SHA-256: `sha256:<hex>`."""
    return _PREFIX + hashlib.sha256(body).hexdigest()


def digest_from_hash(hexadecimal: str) -> str:
    """Write a finished SHA-256 in our form."""
    return _PREFIX + hexadecimal


def to_field(digest: str) -> str:
    """Write a digest as the value of Content-Digest or Repr-Digest: `sha-256=:<base64>:`."""
    raw = bytes.fromhex(digest.removeprefix(_PREFIX))
    return f"sha-256=:{base64.b64encode(raw).decode()}:"


def from_field(value: str) -> str | None:
    """Read the sha-256 member of Content-Digest or Repr-Digest; None when there is none that can be read."""
    found = _FIELD_MEMBER.search(value)
    if found is None:
        return None
    try:
        raw = base64.b64decode(found.group(1), validate=True)
    except binascii.Error:
        return None
    return _PREFIX + raw.hex() if len(raw) == hashlib.sha256().digest_size else None
