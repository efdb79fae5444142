"""Counts of a dishonest member: commitments to any values, with proofs of the nearest counts."""

from __future__ import annotations

from collections.abc import Sequence
from unittest.mock import patch

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from schemas.messages.secure_sum import SumTerms
from schemas.secure_sum import count_proofs
from schemas.secure_sum.curve import commit


def forged_counts(
    terms: SumTerms,
    position: int,
    values: Sequence[int],
    blindings: Sequence[int],
    identity: Ed25519PrivateKey,
) -> bytes:
    """Return commitments to any values; proofs are made for the nearest count, and the whole is signed."""
    sent = iter(values)
    counts = [min(max(value, 0), 1) for value in values]
    with (
        patch.object(count_proofs, "commit", lambda _, blinding: commit(next(sent), blinding)),
        patch.object(count_proofs, "require_choice"),
    ):
        return count_proofs.proved_counts(terms, position, counts, blindings, identity)
