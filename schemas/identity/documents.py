"""Signed documents: JSON objects without fractions, signed for one purpose. Pure.

The signed bytes are the purpose, a line feed, and the object without `signature` in canonical form (RFC 8785:
sorted keys, no spaces, UTF-8). Members unknown to the reader are covered too.
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
    "tessera-report-v1",
    "tessera-secure-sum-v2",
    "tessera-secure-sum-keys-v2",
    "tessera-secure-sum-confirm-v2",
    "tessera-secure-sum-counts-v3",
]
Document = Mapping[str, object]


def sign(purpose: Purpose, document: Document, key: Ed25519PrivateKey) -> str:
    return encode(key.sign(_signed_bytes(purpose, document)))


def is_signed(purpose: Purpose, document: Document, signature: object, key: Ed25519PublicKey) -> bool:
    try:
        raw = decode(signature) if isinstance(signature, str) else b""
        return is_signed_by(key, raw, _signed_bytes(purpose, document))
    except ValueError:
        return False


def hash_of(document: Document) -> str:
    """Return the SHA-256 of a document's canonical form, signature included: `sha256:<hex>`."""
    return f"sha256:{sha256(_canonical(document)).hexdigest()}"


def _signed_bytes(purpose: Purpose, document: Document) -> bytes:
    members = {name: value for name, value in document.items() if name != "signature"}
    return purpose.encode() + b"\n" + _canonical(members)


def _canonical(document: Document) -> bytes:
    return json.dumps(
        document, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
    ).encode()
