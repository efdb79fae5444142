"""Validation of values: NaN, infinity and a majority of denormal values are rejected."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from schemas.wire.errors import TensorNonfinite

# Values per block: temporaries stay in the processor's cache and reuse the same memory, at less than half
# the cost of fresh memory per block.
_AT_ONCE = 2**15

Array = NDArray[np.float32] | NDArray[np.float16] | NDArray[np.int32] | NDArray[np.uint8]


def squares_of(name: str, pieces: Iterable[Array]) -> float:
    """Validate every value of a tensor once, and return the sum of squares in float64.

    Raises:
        TensorNonfinite: NaN, infinity, or more than half denormal values.
    """
    wide, bits = np.empty(_AT_ONCE, np.float64), np.empty(_AT_ONCE, np.uint32)
    total, denormal, count = 0.0, 0, 0
    for piece in pieces:
        for at in range(0, piece.size, _AT_ONCE):
            values = piece[at : at + _AT_ONCE]
            block = wide[: values.size]
            block[...] = values
            squares = float(np.einsum("i,i->", block, block))  # np.dot would start BLAS threads per block
            if not np.isfinite(squares):  # float64 holds the square of every finite float32
                raise TensorNonfinite(f"{name} has NaN or infinity")
            if np.issubdtype(values.dtype, np.floating):
                denormal += _denormals(values, bits[: values.size])
            total += squares
        count += piece.size
    if denormal * 2 > max(1, count):
        raise TensorNonfinite(f"{name} has mostly denormal values")
    return total


def _denormals(values: Array, bits: NDArray[np.uint32]) -> int:
    """Count float16 or float32 values with exponent bits 0 and a non-zero mantissa."""
    half = values.dtype.itemsize == 2
    words = values.view(np.uint16 if half else np.uint32)
    np.bitwise_and(words, 0x7C00 if half else 0x7F800000, out=bits)
    if np.count_nonzero(bits) == bits.size:  # nearly always
        return 0
    return int(np.count_nonzero(words[bits == 0] & (0x03FF if half else 0x007FFFFF)))
