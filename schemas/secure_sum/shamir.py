"""Shamir's secret sharing of 32-byte secrets over the prime field of p = 2^256 + 297 (Shamir 1979).

A share is the value of a random polynomial of degree t - 1 at x = position + 1, as 33 big-endian bytes; the
secret is its value at 0. Any t shares give the secret, and fewer are independent of it.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence

from schemas.secure_sum.errors import SecureSumError

PRIME = 2**256 + 297
SECRET_BYTES = 32
SHARE_BYTES = 33
_DRAWN_BYTES = 48  # 128 bits more than the prime, so that the remainder is uniform up to 2^-127


def split(secret: bytes, threshold: int, members: int) -> list[bytes]:
    """Return one share per member, in the order of positions 0 to `members` - 1.

    Raises:
        SecureSumError: the secret is not 32 bytes, or the threshold is not between 1 and `members`.
    """
    if len(secret) != SECRET_BYTES or not 1 <= threshold <= members:
        raise SecureSumError("a secret has 32 bytes, and a threshold is between 1 and the number of members")
    # token_bytes is the only source of randomness here, so that a test can replay it.
    coefficients = [
        int.from_bytes(secrets.token_bytes(_DRAWN_BYTES), "big") % PRIME for _ in range(threshold - 1)
    ]
    polynomial = [*coefficients, int.from_bytes(secret, "big")]  # highest degree first
    return [_evaluate(polynomial, position + 1).to_bytes(SHARE_BYTES, "big") for position in range(members)]


def lagrange_weights(positions: Sequence[int]) -> dict[int, int]:
    """Return w_j = prod_{k != j} x_k / (x_k - x_j) mod p per position, for x = position + 1.

    The secret is sum_j w_j share_j mod p. The weights depend on the positions only, so that many secrets of
    the same members need them once.

    Raises:
        SecureSumError: a position is repeated or negative.
    """
    if len(set(positions)) != len(positions) or any(position < 0 for position in positions):
        raise SecureSumError("positions of shares are distinct and not negative")
    weights = {}
    for j in positions:
        numerator = denominator = 1
        for k in positions:
            if k != j:
                # x = position + 1, since the value at 0 is the secret.
                numerator = numerator * (k + 1) % PRIME
                denominator = denominator * (k - j) % PRIME
        weights[j] = numerator * pow(denominator, -1, PRIME) % PRIME
    return weights


def combine(shares: Mapping[int, bytes], weights: Mapping[int, int]) -> bytes:
    """Return the secret of shares by position, with the weights of exactly these positions.

    Raises:
        SecureSumError: a share is malformed, or the value is no 32-byte secret: some share is wrong.
    """
    if shares.keys() != weights.keys():
        raise SecureSumError("weights are for other positions than the shares")
    value = sum(weights[position] * share_value(share) for position, share in shares.items()) % PRIME
    # The field is larger than the secrets: a wrong share may give a value that is none.
    if value >= 2 ** (8 * SECRET_BYTES):
        raise SecureSumError("the shares give no 32-byte secret")
    return value.to_bytes(SECRET_BYTES, "big")


def share_value(share: bytes) -> int:
    """Return a share as a field element.

    Raises:
        SecureSumError: it is not 33 bytes below the prime.
    """
    value = int.from_bytes(share, "big")
    if len(share) != SHARE_BYTES or value >= PRIME:
        raise SecureSumError("a share has 33 bytes and is below the prime")
    return value


def _evaluate(polynomial: Sequence[int], x: int) -> int:
    value = 0
    for coefficient in polynomial:  # Horner
        value = (value * x + coefficient) % PRIME
    return value
