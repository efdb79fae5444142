"""Low-rank algebra on B A without ever forming it: exact sums, exact recompression. Both sides add up folds.

A is (r, d_in), B is (d_out, r). Everything is computed in float64 and given in float32.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Values = NDArray[np.float32]

_NEGLIGIBLE = 1e-7


@dataclass(frozen=True, slots=True)
class Factors:
    """A (r, d_in) and B (d_out, r) of one module, float32; r may be 0."""

    A: Values
    B: Values

    @property
    def rank(self) -> int:
        """How many ranks there are."""
        return len(self.A)

    def first(self, rank: int) -> Factors:
        """Give the first `rank` ranks."""
        return Factors(self.A[:rank], self.B[:, :rank])

    def of_rank(self, rank: int) -> Factors:
        """Give the first `rank` ranks, or as many with zeros behind them."""
        missing = max(0, rank - self.rank)
        cut = self.first(rank)
        return Factors(np.pad(cut.A, ((0, missing), (0, 0))), np.pad(cut.B, ((0, 0), (0, missing))))


def side_by_side(parts: Sequence[Factors]) -> Factors:
    """Add products up exactly: [A_1; A_2; ...] and [B_1 B_2 ...]; one part at least."""
    return Factors(np.concatenate([one.A for one in parts]), np.concatenate([one.B for one in parts], axis=1))


def recompressed(factors: Factors, most: int | None = None) -> Factors:
    """Give the same B A, or the nearest of rank `most` (Eckart and Young 1936), in as few ranks as it has.

    By QR of both factors and SVD of what is between them; singular values below 1e-7 of the largest, which
    float32 does not hold, are dropped. Both sides carry the root of the singular values.
    """
    if not factors.rank:
        return factors
    left, inner_b = np.linalg.qr(factors.B.astype(np.float64))  # (d_out, k), (k, r)
    right, inner_a = np.linalg.qr(factors.A.T.astype(np.float64))  # (d_in, l), (l, r)
    u, values, v = np.linalg.svd(inner_b @ inner_a.T)
    kept = int(np.count_nonzero(values > _NEGLIGIBLE * values[0]))
    kept = min(kept, most) if most is not None else kept
    root = np.sqrt(values[:kept])
    b, a = (left @ u[:, :kept]) * root, root[:, None] * (v[:kept] @ right.T)
    return Factors(a.astype(np.float32), b.astype(np.float32))
