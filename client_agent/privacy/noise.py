"""Exact samples of the discrete Gaussian, by integer arithmetic and uniform integers.

Floating-point noise leaks the sum in its low bits (Mironov 2012); integer noise does not. After Canonne,
Kamath, Steinke, "The Discrete Gaussian for Differential Privacy" (NeurIPS 2020, arXiv 2004.00010), algorithms
1 to 3.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from math import isqrt

Below = Callable[[int], int]
"""`below(n)` draws uniformly from 0..n-1; `secrets.randbelow` outside tests."""


def discrete_gaussian(variance: Fraction, below: Below) -> int:
    """Draw x with probability proportional to exp(-x^2 / (2 variance)), over all integers (algorithm 3).

    A discrete Laplace y of scale t = floor(sigma) + 1 is accepted with probability
    exp(-(|y| - variance/t)^2 / (2 variance)).
    """
    t = isqrt(int(variance)) + 1
    while True:
        y = _discrete_laplace(t, below)
        if _bernoulli_exp((abs(y) - variance / t) ** 2 / (2 * variance), below):
            return y


def _discrete_laplace(t: int, below: Below) -> int:
    """Draw y with probability proportional to exp(-|y| / t) (algorithm 2)."""
    while True:
        u = below(t)
        if not _bernoulli_exp(Fraction(u, t), below):
            continue
        v = 0
        while _bernoulli_exp(Fraction(1), below):
            v += 1
        size = u + t * v
        negative = below(2) == 1
        if not (negative and size == 0):  # zero has one representation
            return -size if negative else size


def _bernoulli_exp(gamma: Fraction, below: Below) -> bool:
    """Draw true with probability exp(-gamma), gamma >= 0 (algorithm 1)."""
    while gamma > 1:
        if not _bernoulli_exp(Fraction(1), below):
            return False
        gamma -= 1
    k = 1
    while below(gamma.denominator * k) < gamma.numerator:
        k += 1
    return k % 2 == 1
