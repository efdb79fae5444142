"""Signed documents: JSON objects without fractions, signed for one purpose. Pure.

Signed are the purpose, a line feed, and the object without its member `signature` in the form of RFC 8785:
keys sorted, no spaces, UTF-8. Members that a reader does not know are signed all the same.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from hashlib import sha256
from typing import Literal

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from schemas.identity.keys import decode, encode, is_signed_by

Purpose = Literal[
    "tessera-hello-v1",
    "tessera-enrolment-v1",
    "tessera-round-v1",
    "tessera-rotation-v1",
    "tessera-weights-v1",
    "tessera-audit-v1",
]
Document = Mapping[str, object]


def sign(purpose: Purpose, document: Document, key: Ed25519PrivateKey) -> str:
    """Give the signature of a document as text."""
    return encode(key.sign(_said(purpose, document)))


def is_signed(purpose: Purpose, document: Document, signature: object, key: Ed25519PublicKey) -> bool:
    """Say whether a signature is this key's, for this purpose, over this document."""
    try:
        raw = decode(signature) if isinstance(signature, str) else b""
        return is_signed_by(key, raw, _said(purpose, document))
    except ValueError:
        return False


def hash_of(document: Document) -> str:
    """Name a document, its signature included, by the SHA-256 of its canonical form: `sha256:<hex>`."""
    return f"sha256:{sha256(_canonical(document)).hexdigest()}"


def _said(purpose: Purpose, document: Document) -> bytes:
    members = {name: value for name, value in document.items() if name != "signature"}
    return purpose.encode() + b"\n" + _canonical(members)


def _canonical(document: Document) -> bytes:
    return json.dumps(
        document, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
    ).encode()
