"""Draw integers from the discrete Gaussian, exactly: integer arithmetic and fair random words, no float.

Noise in floating point betrays by its low bits what it was added to (Mironov 2012); this one has no low bits.
After Canonne, Kamath, Steinke, "The Discrete Gaussian for Differential Privacy" (NeurIPS 2020, arXiv
2004.00010), algorithms 1 to 3. Knows nothing of what the noise is for.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from math import isqrt

Below = Callable[[int], int]
"""`below(n)` draws evenly from 0..n-1; `secrets.randbelow` where it matters."""


def discrete_gaussian(variance: Fraction, below: Below) -> int:
    """Draw x with probability proportional to exp(-x^2 / (2 variance)), over all integers.

    A discrete Laplace of scale t = floor(sigma) + 1 is drawn until one is kept, which has the probability
    exp(-(|y| - variance/t)^2 / (2 variance)).
    """
    t = isqrt(int(variance)) + 1
    while True:
        y = _discrete_laplace(t, below)
        if _happens_exp((abs(y) - variance / t) ** 2 / (2 * variance), below):
            return y


def _discrete_laplace(t: int, below: Below) -> int:
    """Draw y with probability proportional to exp(-|y| / t)."""
    while True:
        u = below(t)
        if not _happens_exp(Fraction(u, t), below):
            continue
        v = 0
        while _happens_exp(Fraction(1), below):
            v += 1
        size = u + t * v
        negative = below(2) == 1
        if not (negative and size == 0):  # zero must not count twice
            return -size if negative else size


def _happens_exp(gamma: Fraction, below: Below) -> bool:
    """Say yes with probability exp(-gamma), gamma >= 0."""
    while gamma > 1:
        if not _happens_exp(Fraction(1), below):
            return False
        gamma -= 1
    k = 1
    while below(gamma.denominator * k) < gamma.numerator:
        k += 1
    return k % 2 == 1
