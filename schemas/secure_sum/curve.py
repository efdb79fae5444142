"""The group of commitments: the subgroup of prime order of edwards25519, by libsodium.

Points are 32 bytes as in RFC 8032, scalars are integers modulo the order. libsodium multiplies points of the
subgroup only: it refuses encodings that are not canonical, the identity, and points with a part of small
order.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import Any, Final

from schemas.secure_sum.errors import SecureSumError

ORDER: Final = 2**252 + 27742317777372353535851937790883648493
POINT_BYTES: Final = 32
IDENTITY: Final = b"\x01" + bytes(31)
_WIDE_BYTES: Final = 64
_NO_POINT: Final = "a point is not one of the group of commitments"

VALUE_BASE: Final = bytes.fromhex("ba7a352a88de6ba46971c66df960544ff145951f10e9be7d88efc2d0299c2a46")
"""H, SHA-512 of `VALUE_BASE_LABEL` hashed to the group: nobody knows its logarithm to the standard base B."""

VALUE_BASE_LABEL: Final = b"tessera-secure-sum-value-base-v3"


def base_times(scalar: int) -> bytes:
    """Return scalar x B, the standard base."""
    reduced = scalar % ORDER
    # libsodium refuses to return the identity.
    if not reduced:
        return IDENTITY
    return bytes(_sodium().crypto_scalarmult_ed25519_base_noclamp(_octets(reduced)))


def times(scalar: int, point: bytes) -> bytes:
    """Return scalar x point.

    Raises:
        SecureSumError: the point is not canonical, not of the subgroup, or its identity.
    """
    reduced = scalar % ORDER
    if reduced:
        return _computed("crypto_scalarmult_ed25519_noclamp", _octets(reduced), point)
    if len(point) != POINT_BYTES or not _sodium().crypto_core_ed25519_is_valid_point(point):
        raise SecureSumError(_NO_POINT)
    return IDENTITY


def add(first: bytes, second: bytes) -> bytes:
    """Return the sum of two points of the group.

    Raises:
        SecureSumError: an encoding is not of a point of the curve.
    """
    return _computed("crypto_core_ed25519_add", first, second)


def subtract(first: bytes, second: bytes) -> bytes:
    """Return the difference of two points of the group.

    Raises:
        SecureSumError: an encoding is not of a point of the curve.
    """
    return _computed("crypto_core_ed25519_sub", first, second)


def added(points: Iterable[bytes]) -> bytes:
    """Return the sum of points of the group."""
    total = IDENTITY
    for point in points:
        total = add(total, point)
    return total


def commit(value: int, blinding: int) -> bytes:
    """Return the Pedersen commitment blinding x B + value x H."""
    return add(base_times(blinding), times(value, VALUE_BASE))


def wide_scalar(octets: bytes) -> int:
    """Return 64 uniform bytes as a scalar, uniform up to 2^-250.

    Raises:
        SecureSumError: another length.
    """
    if len(octets) != _WIDE_BYTES:
        raise SecureSumError(f"a scalar is derived from {_WIDE_BYTES} bytes")
    return int.from_bytes(octets, "little") % ORDER


def encode_scalar(scalar: int) -> bytes:
    """Return a scalar as 32 little-endian bytes."""
    return _octets(scalar % ORDER)


def decode_scalar(octets: bytes) -> int:
    """Return a scalar of 32 little-endian bytes.

    Raises:
        SecureSumError: another length, or not below the order: a second spelling of another scalar.
    """
    scalar = int.from_bytes(octets, "little")
    if len(octets) != POINT_BYTES or scalar >= ORDER:
        raise SecureSumError("a scalar is not 32 bytes below the order of the group")
    return scalar


def _octets(scalar: int) -> bytes:
    return scalar.to_bytes(POINT_BYTES, "little")


def _computed(function: str, first: bytes, second: bytes) -> bytes:
    """Return the point that a function of libsodium computes.

    Raises:
        SecureSumError: it refuses a point.
    """
    sodium = _sodium()
    if len(first) != POINT_BYTES or len(second) != POINT_BYTES:
        raise SecureSumError(_NO_POINT)
    try:
        return bytes(getattr(sodium, function)(first, second))
    except RuntimeError as error:  # nacl.exceptions.RuntimeError is one
        raise SecureSumError(_NO_POINT) from error


@cache
def _sodium() -> Any:
    """Return the functions of libsodium; loaded with the first point, as only counts need them."""
    from nacl import bindings

    return bindings
