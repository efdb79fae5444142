"""Keys of a session: two fresh X25519 pairs per member, and what two members derive from them.

`c` pairs give the key of the channel between two members, `s` pairs the key of their common mask. Derived
keys are HKDF-SHA256. Its `info` has the session's terms, and both members' positions and public keys as they
were sent: another session has unrelated keys, and so has a member that copies or respells a key.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Literal

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from schemas.identity.keys import decode
from schemas.messages.secure_sum import KeysStep
from schemas.secure_sum.errors import SecureSumError

_SALT = b"tessera-secagg-v2"
_PRIME = 2**255 - 19
_KEY_BYTES = 32
_LABEL_BYTES = 8
_POSITION_BYTES = 2
PairLabel = Literal["channel", "mask"]


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


# Not a secret: public keys are compared by what it agrees on with them.
_PROBE = SecretKey(b"\x01" * 32)


@dataclass(frozen=True, slots=True)
class AdvertisedKeys:
    """The public keys of a member as it sent them, and its position in the terms."""

    position: int
    channel: bytes
    mask: bytes

    @classmethod
    def of(cls, position: int, step: KeysStep) -> AdvertisedKeys:
        """Return the keys of a member's step 0.

        Raises:
            ValueError: they are not base64url.
        """
        return cls(position, decode(step.c), decode(step.s))


def new_secret_key() -> SecretKey:
    # Not `.generate()`: all randomness comes from token_bytes, which a test can replay.
    return SecretKey(secrets.token_bytes(32))


def agreed_key(
    secret: SecretKey, label: PairLabel, terms_hash: str, owner: AdvertisedKeys, peer: AdvertisedKeys
) -> bytes:
    """Return the 32-byte key that two members derive from each other's public keys.

    `secret` is the private key of `owner` for this label.

    Raises:
        SecureSumError: the peer's key is not 32 bytes, or of low order.
    """
    shared = secret.exchange(peer.channel if label == "channel" else peer.mask)
    return _derived(shared, label, terms_hash, _pair(owner, peer))


def self_mask_key(seed: bytes, terms_hash: str) -> bytes:
    """Return the 32-byte key of the mask that a member draws from its seed `b`."""
    return _derived(seed, "self", terms_hash, b"")


def require_distinct(keys: Iterable[bytes]) -> None:
    """Check the advertised keys of a session: each usable, and no two with which members agree alike.

    Raises:
        SecureSumError: a key is not usable, or two of them are equal up to a point of small order.
    """
    cleared = [cleared_key(key) for key in keys]
    if len(set(cleared)) < len(cleared):
        raise SecureSumError("two public keys are equal")


@lru_cache(maxsize=1024)
def cleared_key(public: bytes) -> bytes:
    """Return a key without its part of small order: equal for keys that agree alike with every other key.

    It is u(n P) for a fixed n = 8 m. If u(n P) = u(n Q), then n (P - Q) or n (P + Q) is 0. As m < 2^252 has
    no factor in common with the prime orders l of the curve (8 l points) and l' of its twist (4 l' points),
    that point has an order that divides 8: P is Q or -Q, up to a point of small order. A point of the curve
    never equals one of the twist: n P and n Q have the orders l and l'.

    Raises:
        SecureSumError: the key is not 32 bytes, not canonical (u < p, bit 255 clear), or of low order.
    """
    if len(public) != _KEY_BYTES or int.from_bytes(public, "little") >= _PRIME:
        raise SecureSumError("a public key is not a canonical X25519 key of 32 bytes")
    return _PROBE.exchange(public)


def seal(key: bytes, plain: bytes, source: int, destination: int, context: bytes) -> bytes:
    """Encrypt the one message of a session from `source` to `destination` by AES-256-GCM."""
    # Both directions of a pair have the same key. The nonce is the two positions, so that it is used once.
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


def _derived(secret: bytes, label: PairLabel | Literal["self"], terms_hash: str, parties: bytes) -> bytes:
    """Return HKDF-SHA256 of a secret."""
    terms = bytes.fromhex(terms_hash.removeprefix("sha256:"))
    # Of a fixed length for each label, so that two inputs never have the same bytes.
    info = label.encode().ljust(_LABEL_BYTES, b"\0") + terms + parties
    return HKDF(algorithm=SHA256(), length=_KEY_BYTES, salt=_SALT, info=info).derive(secret)


def _pair(first: AdvertisedKeys, second: AdvertisedKeys) -> bytes:
    """Return both positions and both members' keys, the lower position first: 132 bytes."""
    # Both members of the pair derive the same bytes.
    members = sorted((first, second), key=lambda member: member.position)
    positions = [member.position.to_bytes(_POSITION_BYTES, "big") for member in members]
    return b"".join([*positions, *(key for member in members for key in (member.channel, member.mask))])
