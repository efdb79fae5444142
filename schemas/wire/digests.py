"""Digests of bytes: the internal form `sha256:<hex>` and the header fields of RFC 9530."""

from __future__ import annotations

import base64
import binascii
import hashlib
import re

_PREFIX = "sha256:"
_FIELD_MEMBER = re.compile(r"\s*sha-256\s*=\s*:([A-Za-z0-9+/=]+):\s*")


def digest_of(body: bytes | bytearray) -> str:
    return _PREFIX + hashlib.sha256(body).hexdigest()


def digest_from_hash(hexadecimal: str) -> str:
    return _PREFIX + hexadecimal


def to_field(digest: str) -> str:
    """Return a digest as the value of Content-Digest or Repr-Digest: `sha-256=:<base64>:`."""
    raw = bytes.fromhex(digest.removeprefix(_PREFIX))
    return f"sha-256=:{base64.b64encode(raw).decode()}:"


def from_field(value: str) -> str | None:
    """Parse the sha-256 member of Content-Digest or Repr-Digest.

    None if it is absent, malformed, in no canonical base64, or there twice.
    """
    matches = [match for member in value.split(",") if (match := _FIELD_MEMBER.fullmatch(member))]
    # Of two members another reader could take the other one.
    if len(matches) != 1:
        return None
    text = matches[0].group(1)
    try:
        raw = base64.b64decode(text, validate=True)
    except binascii.Error:
        return None
    # Other spellings of the same digest would be signed as other texts.
    is_digest = len(raw) == hashlib.sha256().digest_size and base64.b64encode(raw).decode() == text
    return _PREFIX + raw.hex() if is_digest else None
