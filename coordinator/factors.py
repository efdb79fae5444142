"""Low-rank algebra on B A without ever forming it: means, sums, exact recompression. Pure NumPy.

A is (r, d_in), B is (d_out, r). Everything is computed in float64 and given in float32.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Values = NDArray[np.float32]
Floats = NDArray[np.float64]


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


@dataclass(frozen=True, slots=True)
class Source:
    """What one client brings into a module: its factors, their weight, and how many rounds old they are.

    The weights of all sources sum to 1.
    """

    factors: Factors
    weight: float
    age: int = 0


def mean(sources: Sequence[Source]) -> Factors:
    """A = sum p_i A_i, B = sum p_i B_i: FedAvg of the factors, whose product is not the mean product."""
    a = sum(one.weight * one.factors.A.astype(np.float64) for one in sources)
    b = sum(one.weight * one.factors.B.astype(np.float64) for one in sources)
    return Factors(np.asarray(a, np.float32), np.asarray(b, np.float32))
