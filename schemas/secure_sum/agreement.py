"""Keys of a session: two fresh X25519 pairs per member, and what two members derive from them.

`c` pairs give the key of the channel between two members, `s` pairs the key of their common mask. Derived
keys are HKDF-SHA256 with the session's terms in `info`: the keys of another session are unrelated.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from typing import Literal

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from schemas.secure_sum.errors import SecureSumError

_SALT = b"tessera-secagg-v1"
Label = Literal["channel", "mask", "self"]


@dataclass(frozen=True, slots=True)
class SecretKey:
    """An X25519 private key, as 32 bytes."""

    raw: bytes

    @property
    def public(self) -> bytes:
        return X25519PrivateKey.from_private_bytes(self.raw).public_key().public_bytes_raw()


def new_secret_key() -> SecretKey:
    # Not `.generate()`: all randomness comes from token_bytes, which a test can replay.
    return SecretKey(secrets.token_bytes(32))


def agreed_key(secret: SecretKey, peer: bytes, label: Label, terms_hash: str) -> bytes:
    """Return the 32-byte key that two members derive from each other's public keys.

    Raises:
        SecureSumError: the peer's key is not 32 bytes, or of low order.
    """
    try:
        shared = X25519PrivateKey.from_private_bytes(secret.raw).exchange(
            X25519PublicKey.from_public_bytes(peer)
        )
    except ValueError as error:
        raise SecureSumError("a public key is not 32 bytes, or of low order") from error
    return derived_key(shared, label, terms_hash)


def derived_key(secret: bytes, label: Label, terms_hash: str) -> bytes:
    """Return HKDF-SHA256 of a secret, 32 bytes, under a label and a session's terms."""
    info = label.encode() + b"|" + terms_hash.encode()
    return HKDF(algorithm=SHA256(), length=32, salt=_SALT, info=info).derive(secret)


def require_usable(public: bytes) -> None:
    """Check an advertised key before it is accepted.

    Raises:
        SecureSumError: it is not 32 bytes, or of low order.
    """
    agreed_key(SecretKey(b"\x01" * 32), public, "channel", "")


def seal(key: bytes, plain: bytes, source: int, destination: int, context: bytes) -> bytes:
    """Encrypt the one message of a session from `source` to `destination` by AES-256-GCM.

    Both directions of a pair have the same key; the nonce is the two positions, so it is never used twice.
    """
    return AESGCM(key).encrypt(_nonce(source, destination), plain, context)


def unseal(key: bytes, sealed: bytes, source: int, destination: int, context: bytes) -> bytes:
    """Decrypt a message.

    Raises:
        SecureSumError: it was sealed by another key, for another pair or in another context, or changed.
    """
    try:
        return AESGCM(key).decrypt(_nonce(source, destination), sealed, context)
    except InvalidTag as error:
        raise SecureSumError("a ciphertext does not decrypt") from error


def _nonce(source: int, destination: int) -> bytes:
    return source.to_bytes(6, "big") + destination.to_bytes(6, "big")
