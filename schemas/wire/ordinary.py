"""Tell ordinary numbers from those that no training leaves: NaN, infinity, floods of denormal values."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from schemas.wire.refusals import TensorNonfinite

Array = NDArray[np.float32] | NDArray[np.float16] | NDArray[np.int32] | NDArray[np.uint8]


def squares_of(name: str, pieces: Iterable[Array]) -> float:
    """Look at every value of a tensor once, and give the sum of their squares in float64.

    Raises:
        TensorNonfinite: NaN, infinity, or more denormal values than ordinary ones.
    """
    total, denormal, count = 0.0, 0, 0
    for values in pieces:
        wide = values.astype(np.float64)
        squares = float(np.einsum("i,i->", wide, wide))  # np.dot would wake BLAS's threads for each
        if not np.isfinite(squares):  # float64 holds the square of every finite float32
            raise TensorNonfinite(f"{name} has NaN or infinity")
        if np.issubdtype(values.dtype, np.floating):
            denormal += _denormals(values)
        total += squares
        count += values.size
    if denormal * 2 > max(1, count):
        raise TensorNonfinite(f"{name} has mostly denormal values")
    return total


def _denormals(values: Array) -> int:
    """Count the values of float16 or float32 whose exponent bits are 0 and whose mantissa is not."""
    if values.dtype.itemsize == 2:
        halves = values.view(np.uint16)
        return int(np.count_nonzero(halves[(halves & 0x7C00) == 0] & 0x7FFF))
    words = values.view(np.uint32)
    return int(np.count_nonzero(words[(words & 0x7F800000) == 0] & 0x7FFFFFFF))
