"""Terms of a session: their digest, their signature, and the threshold for a number of members."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from schemas.identity.documents import Document, Purpose, hash_of, is_signed, sign
from schemas.messages.secure_sum import SumTerms

_PURPOSE: Purpose = "tessera-secure-sum-v2"


def threshold_for(members: int) -> int:
    """Return t = floor(2 N / 3) + 1.

    Two sets of t members have more than N / 3 members in common: while fewer than a third collude with the
    server, different sets shown to different members give it t shares of at most one secret of a member.
    """
    return 2 * members // 3 + 1


def signed_terms(fields: Mapping[str, object], key: Ed25519PrivateKey) -> SumTerms:
    """Return terms with the server's signature; `fields` are those of `SumTerms` without `signature`."""
    return signed_terms_by(fields, partial(sign, key=key))


def signed_terms_by(fields: Mapping[str, object], signer: Callable[[Purpose, Document], str]) -> SumTerms:
    """Return terms with a signature that `signer` makes of a purpose and a document."""
    return SumTerms.model_validate({**fields, "signature": signer(_PURPOSE, _document(fields))})


def is_signed_by_server(terms: SumTerms, key: Ed25519PublicKey) -> bool:
    document = terms.model_dump(mode="json")
    return is_signed(_PURPOSE, document, terms.signature, key)


def terms_hash(terms: SumTerms) -> str:
    """Return T, the digest of the terms that is in every signature, key derivation and ciphertext."""
    return hash_of(terms.model_dump(mode="json"))


def _document(fields: Mapping[str, object]) -> dict[str, object]:
    # Through the model, so that defaults are signed too.
    unsigned = SumTerms.model_validate({**fields, "signature": "unsigned"})
    return {name: value for name, value in unsigned.model_dump(mode="json").items() if name != "signature"}
