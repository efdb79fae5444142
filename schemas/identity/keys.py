"""Ed25519 public keys as text (base64url of 32 bytes), without small-order and non-canonical keys. Pure.

A small-order key verifies one forged signature for most messages, and the library accepts such keys; a
non-canonical key is a second name of another key (RFC 8032, section 5.1.3).
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

_PRIME = 2**255 - 19
_TEXT = re.compile(r"[A-Za-z0-9_-]+")
_KEY_BYTES = 32

_SMALL_ORDER = frozenset(
    bytes.fromhex(point)
    for point in (
        "0100000000000000000000000000000000000000000000000000000000000000",
        "ecffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
        "0000000000000000000000000000000000000000000000000000000000000000",
        "0000000000000000000000000000000000000000000000000000000000000080",
        "26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05",
        "26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc85",
        "c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac037a",
        "c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac03fa",
    )
)
# x = 0 has no sign: these two name the identity and the point of order 2 once more.
_SIGNED_ZERO = frozenset(
    bytes.fromhex(point)
    for point in (
        "0100000000000000000000000000000000000000000000000000000000000080",
        "ecffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff",
    )
)


class KeyUnusable(ValueError):
    """The text is not an acceptable Ed25519 public key."""


def encode(raw: bytes) -> str:
    """Encode bytes as base64url without padding."""
    return base64.urlsafe_b64encode(raw).decode().rstrip("=")


def decode(text: str) -> bytes:
    """Decode base64url without padding, in canonical form only.

    Raises:
        ValueError: any other form.
    """
    try:
        raw = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)) if _TEXT.fullmatch(text) else b""
    except binascii.Error as error:
        raise ValueError("not base64url") from error
    # Other spellings of the same bytes would be second names of one key.
    if encode(raw) != text or not raw:
        raise ValueError("not base64url")
    return raw


def public_key(text: str) -> Ed25519PublicKey:
    """Load a public key.

    Raises:
        KeyUnusable: it is not 32 bytes, has a small order, or is not canonical.
    """
    try:
        raw = decode(text)
    except ValueError as error:
        raise KeyUnusable("not base64url") from error
    # A key of small order verifies one forged signature for most messages, and the library accepts it.
    if len(raw) != _KEY_BYTES or raw in _SMALL_ORDER or raw in _SIGNED_ZERO:
        raise KeyUnusable("not 32 bytes, or of small order")
    # A key that is not reduced is a second name of another key (RFC 8032, section 5.1.3).
    if int.from_bytes(raw, "little") % 2**255 >= _PRIME:
        raise KeyUnusable("not canonical")
    return Ed25519PublicKey.from_public_bytes(raw)


def name_of(key: Ed25519PublicKey | Ed25519PrivateKey) -> str:
    public = key.public_key() if isinstance(key, Ed25519PrivateKey) else key
    return encode(public.public_bytes_raw())


def thumbprint(name: str) -> str:
    """Return the SHA-256 of a public key as text; enrolment tokens pin it."""
    return encode(hashlib.sha256(decode(name)).digest())


def is_signed_by(key: Ed25519PublicKey, signature: bytes, message: bytes) -> bool:
    try:
        key.verify(signature, message)
    except InvalidSignature:
        return False
    return True
