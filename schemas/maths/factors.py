"""Low-rank algebra on B A without forming the product: exact sums and recompression of base deltas.

A is (r, d_in), B is (d_out, r). Computed in float64, returned in float32.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Values = NDArray[np.float32]
State = Mapping[str, Values]
"""The tensors of an adapter by name."""

_NEGLIGIBLE = 1e-7


@dataclass(frozen=True, slots=True)
class Factors:
    """A (r, d_in) and B (d_out, r) of one module, float32; r may be 0."""

    A: Values
    B: Values

    @property
    def rank(self) -> int:
        return len(self.A)

    def first(self, rank: int) -> Factors:
        return Factors(self.A[:rank], self.B[:, :rank])

    def of_rank(self, rank: int) -> Factors:
        """Return exactly `rank` ranks: the first ones, padded with zeros."""
        missing = max(0, rank - self.rank)
        cut = self.first(rank)
        return Factors(np.pad(cut.A, ((0, missing), (0, 0))), np.pad(cut.B, ((0, 0), (0, missing))))


def resized(values: Values, shape: tuple[int, ...]) -> Values:
    """Return a matrix cut, or padded with zeros, to a shape; itself if it has that shape."""
    if values.shape == shape:
        return values
    changed = np.zeros(shape, values.dtype)
    common = tuple(slice(min(old, new)) for old, new in zip(values.shape, shape, strict=True))
    changed[common] = values[common]
    return changed


def side_by_side(parts: Sequence[Factors]) -> Factors:
    """Return the exact sum of products: [A_1; A_2; ...] and [B_1 B_2 ...]; at least one part."""
    return Factors(
        np.concatenate([part.A for part in parts]), np.concatenate([part.B for part in parts], axis=1)
    )


def recompressed(factors: Factors, most: int | None = None) -> Factors:
    """Return the same B A at its lowest rank, or its best approximation of rank `most`.

    By QR of both factors and SVD of the core (Eckart and Young 1936), without forming the product.
    """
    if not factors.rank:
        return factors
    left, inner_b = np.linalg.qr(factors.B.astype(np.float64))  # (d_out, k), (k, r)
    right, inner_a = np.linalg.qr(factors.A.T.astype(np.float64))  # (d_in, l), (l, r)
    u, values, v = np.linalg.svd(inner_b @ inner_a.T)
    # Below the precision of float32 only rounding is left.
    rank = int(np.count_nonzero(values > _NEGLIGIBLE * values[0]))
    rank = min(rank, most) if most is not None else rank
    # Both factors get the root, so that neither is much larger than the other.
    root = np.sqrt(values[:rank])
    b, a = (left @ u[:, :rank]) * root, root[:, None] * (v[:rank] @ right.T)
    return Factors(a.astype(np.float32), b.astype(np.float32))
