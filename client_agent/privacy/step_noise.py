"""Exact samples of the discrete Gaussian for whole gradients, many at a time.

The distribution is that of `release.discrete_gaussian`, by the same algorithms (Canonne, Kamath, Steinke
2020, arXiv 2004.00010, algorithms 1 to 3), with NumPy in place of fractions. A draw "true with probability
exp(-x)" compares a random word with exp(-x) in float64. Where both are so close that rounding could decide,
about once in 2^40 draws, the comparison is made again with 80 digits and 256 bits more. So the error of
float64 never decides, and the distribution is exact up to 2^-200.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from decimal import Context, Decimal
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

Words = Callable[[int], NDArray[np.uint64]]
"""`words(n)` draws n independent uniform words of 64 bits; `system_words` outside tests."""

Steps = NDArray[np.int64]
_Exponents = NDArray[np.float64]
Exact = Callable[[int], Fraction]
"""The exact exponent of the draw of a place."""

_MARGIN = 2.0**-40
_WORD = 2.0**64
_MORE_BITS = 256
_DIGITS = Context(prec=80)
_AT_ONCE = 1 << 18
LARGEST = 1 << 40
"""The largest standard deviation, in steps: beyond it float64 is too coarse for the margin."""


def system_words(count: int) -> NDArray[np.uint64]:
    """Draw words from the operating system's random number generator; there is no seed to be known."""
    return np.frombuffer(os.urandom(8 * count), np.uint64)


def discrete_gaussians(count: int, sigma: int, words: Words = system_words) -> Steps:
    """Draw `count` integers, each x with probability proportional to exp(-x^2 / (2 sigma^2)): (count,).

    Args:
        sigma: the standard deviation in steps, from 2^10 to `LARGEST`.

    Raises:
        ValueError: `sigma` is out of this range.
    """
    if not 1 << 10 <= sigma <= LARGEST:
        raise ValueError(f"sigma {sigma} is not from 2^10 to 2^40 steps")
    samples = np.empty(count, np.int64)
    for start in range(0, count, _AT_ONCE):
        block = samples[start : start + _AT_ONCE]
        undrawn = np.arange(block.size)
        while undrawn.size:
            values = _laplace(undrawn.size, sigma + 1, words)
            accepted = _accepted(values, sigma, words)
            # Only rejected places are drawn again, together for a block.
            block[undrawn[accepted]] = values[accepted]
            undrawn = undrawn[~accepted]
    return samples


def _accepted(values: Steps, sigma: int, words: Words) -> NDArray[np.bool_]:
    """Draw whether to keep each y of scale t: with probability exp(-(|y| - sigma^2/t)^2 / (2 sigma^2))."""
    t = sigma + 1
    # The float64 form below avoids the square of sigma, which has up to 80 bits.
    centre = Fraction(sigma * sigma, t)  # = sigma - 1 + 1/t
    distance = np.abs(values).astype(np.float64) - (sigma - 1) - 1 / t

    def exact(place: int) -> Fraction:
        return (abs(int(values[place])) - centre) ** 2 / (2 * sigma * sigma)

    return _true_with(np.square(distance / sigma) / 2, exact, words)


def _laplace(count: int, t: int, words: Words) -> Steps:
    """Draw y with probability proportional to exp(-|y| / t) (algorithm 2): (count,)."""
    samples = np.empty(count, np.int64)
    undrawn = np.arange(count)
    while undrawn.size:
        u = _uniform_below(t, undrawn.size, words)
        size = u + t * _geometric(undrawn.size, words)
        accepted = _true_with(u / t, _shares(u, t), words)
        negative = (words(undrawn.size) & np.uint64(1)).astype(bool)
        accepted &= ~(negative & (size == 0))  # zero has one representation
        samples[undrawn[accepted]] = np.where(negative, -size, size)[accepted]
        undrawn = undrawn[~accepted]
    return samples


def _shares(u: Steps, t: int) -> Exact:
    return lambda place: Fraction(int(u[place]), t)


def _geometric(count: int, words: Words) -> Steps:
    """Draw how often "true with probability exp(-1)" is true before it is false: (count,)."""
    counts = np.zeros(count, np.int64)
    running = np.arange(count)
    while running.size:
        running = running[_true_with(np.ones(running.size), lambda _: Fraction(1), words)]
        counts[running] += 1
    return counts


def _uniform_below(t: int, count: int, words: Words) -> Steps:
    """Draw uniformly from 0..t-1, without the bias of a remainder: (count,)."""
    # Words above the last multiple of t would make small remainders likelier.
    largest_word = (1 << 64) // t * t - 1
    drawn_words = np.array(words(count))
    while (too_large := drawn_words > np.uint64(largest_word)).any():
        drawn_words[too_large] = words(int(too_large.sum()))
    return (drawn_words % np.uint64(t)).astype(np.int64)


def _true_with(x: _Exponents, exact: Exact, words: Words) -> NDArray[np.bool_]:
    """Draw true with probability exp(-x), x >= 0, place by place."""
    drawn = words(x.size)
    share = np.exp(-x)
    uniform = drawn.astype(np.float64) / _WORD
    true = uniform < share
    # Rounding could decide these draws, about one in 2^40.
    for place in np.flatnonzero(np.abs(uniform - share) <= _MARGIN).tolist():
        true[place] = _is_below(int(drawn[place]), exact(place), words)
    return true


def _is_below(word: int, x: Fraction, words: Words) -> bool:
    """Whether a uniform number that begins with `word` is below exp(-x); its other bits are drawn here."""
    for low_word in words(_MORE_BITS // 64).tolist():
        word = word << 64 | int(low_word)
    exponent = _DIGITS.divide(Decimal(-x.numerator), Decimal(x.denominator))
    threshold = _DIGITS.multiply(_DIGITS.exp(exponent), Decimal(1 << 64 + _MORE_BITS))
    return Decimal(word) < threshold
