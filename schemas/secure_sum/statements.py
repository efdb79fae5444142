"""The statements that members of a session sign, and the digests of their sets."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from schemas.identity.documents import Purpose, hash_of, is_signed, sign
from schemas.identity.keys import encode
from schemas.messages.secure_sum import ConfirmStep, KeysStep

_KEYS: Purpose = "tessera-secure-sum-keys-v2"
_CONFIRM: Purpose = "tessera-secure-sum-confirm-v2"


def sign_keys(terms: str, c: bytes, s: bytes, nonce: bytes, identity: Ed25519PrivateKey) -> KeysStep:
    document = {"terms": terms, "c": encode(c), "s": encode(s), "nonce": encode(nonce)}
    members = {name: value for name, value in document.items() if name != "terms"}
    return KeysStep(**members, signature=sign(_KEYS, document, identity))


def are_keys_signed(terms: str, keys: KeysStep, identity: Ed25519PublicKey) -> bool:
    document = {"terms": terms, **keys.model_dump(exclude={"signature"})}
    return is_signed(_KEYS, document, keys.signature, identity)


def sign_sets(terms: str, sharing: str, masked: str, identity: Ed25519PrivateKey) -> ConfirmStep:
    """Confirm the digests of U2 and U3."""
    return ConfirmStep(signature=sign(_CONFIRM, _sets(terms, sharing, masked), identity))


def are_sets_signed(
    terms: str, sharing: str, masked: str, confirmation: ConfirmStep, identity: Ed25519PublicKey
) -> bool:
    return is_signed(_CONFIRM, _sets(terms, sharing, masked), confirmation.signature, identity)


def keys_digest(keys: Mapping[int, KeysStep]) -> str:
    """Return H(U1): of positions and public keys."""
    return hash_of({"keys": [[position, keys[position].c, keys[position].s] for position in sorted(keys)]})


def sharing_digest(commitments: Mapping[int, str]) -> str:
    """Return H(U2): of positions and commitments."""
    return hash_of({"commitments": [[position, commitments[position]] for position in sorted(commitments)]})


def masked_digest(members: Sequence[int]) -> str:
    """Return H(U3): of positions."""
    return hash_of({"members": sorted(members)})


def commitment_to(seed: bytes) -> str:
    """Return the SHA-256 of a self mask's seed, by which a rebuilt seed is checked."""
    return encode(hashlib.sha256(seed).digest())


def _sets(terms: str, sharing: str, masked: str) -> dict[str, object]:
    return {"terms": terms, "sharing": sharing, "masked": masked}
