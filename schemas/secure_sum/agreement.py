"""Keys of a session: two fresh X25519 pairs per member, and what two members derive from them.

`c` pairs give the key of the channel between two members, `s` pairs the key of their common mask. Derived
keys are HKDF-SHA256 with the session's terms in `info`: the keys of another session are unrelated.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from schemas.secure_sum.errors import SecureSumError

_SALT = b"tessera-secagg-v1"
Label = Literal["channel", "mask", "self"]


@dataclass(frozen=True)
class SecretKey:
    """An X25519 private key, as 32 bytes."""

    raw: bytes = field(repr=False)

    @cached_property
    def public(self) -> bytes:
        return self._key.public_key().public_bytes_raw()

    def exchange(self, peer: bytes) -> bytes:
        """Return the 32 bytes that two keys have in common, before any derivation.

        Raises:
            SecureSumError: the peer's key is not 32 bytes, or of low order.
        """
        try:
            return self._key.exchange(X25519PublicKey.from_public_bytes(peer))
        except ValueError as error:
            raise SecureSumError("a public key is not 32 bytes, or of low order") from error

    @cached_property
    def _key(self) -> X25519PrivateKey:
        # Reading a private key computes its public one, which costs as much as an exchange.
        return X25519PrivateKey.from_private_bytes(self.raw)


_PROBE = SecretKey(b"\x01" * 32)
"""Not a secret: any key fails to agree with one of low order."""


def new_secret_key() -> SecretKey:
    # Not `.generate()`: all randomness comes from token_bytes, which a test can replay.
    return SecretKey(secrets.token_bytes(32))


def agreed_key(secret: SecretKey, peer: bytes, label: Label, terms_hash: str) -> bytes:
    """Return the 32-byte key that two members derive from each other's public keys.

    Raises:
        SecureSumError: the peer's key is not 32 bytes, or of low order.
    """
    return derived_key(secret.exchange(peer), label, terms_hash)


def derived_key(secret: bytes, label: Label, terms_hash: str) -> bytes:
    """Return HKDF-SHA256 of a secret, 32 bytes, under a label and a session's terms."""
    info = label.encode() + b"|" + terms_hash.encode()
    return HKDF(algorithm=SHA256(), length=32, salt=_SALT, info=info).derive(secret)


def require_usable(public: bytes) -> None:
    """Check an advertised key before it is accepted.

    Raises:
        SecureSumError: it is not 32 bytes, or of low order.
    """
    _PROBE.exchange(public)


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
