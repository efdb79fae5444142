"""The noise of whole gradients: the discrete Gaussian, exact where float64 cannot decide."""

from __future__ import annotations

import math
from collections.abc import Sequence
from decimal import Context, Decimal
from fractions import Fraction

import numpy as np
import pytest
from scipy.stats import chi2

from client_agent.privacy import step_noise
from client_agent.privacy.step_noise import LARGEST, Words, discrete_gaussians, system_words


def seeded(seed: int) -> Words:
    generator = np.random.PCG64(seed)
    return lambda count: np.asarray(generator.random_raw(count), np.uint64)


def scripted(*words: int) -> Words:
    """Return these words in this order, in pieces of any size."""
    remaining = list(words)

    def draw(count: int) -> np.ndarray:
        drawn = [remaining.pop(0) for _ in range(count)]
        return np.array(drawn, np.uint64)

    return draw


def test_samples_have_the_distribution_of_the_discrete_gaussian() -> None:
    sigma, count = 1024, 200_000
    drawn = discrete_gaussians(count, sigma, seeded(3))
    support = np.arange(-8 * sigma, 8 * sigma + 1)
    share = np.exp(-(support.astype(float) ** 2) / (2 * sigma**2))
    share /= share.sum()
    edges = np.linspace(-3 * sigma, 3 * sigma, 61)
    bins = np.digitize(support, edges)
    expected = np.bincount(bins, weights=share, minlength=62) * count
    counts = np.bincount(np.digitize(drawn, edges), minlength=62)
    assert float(((counts - expected) ** 2 / expected).sum()) < chi2.ppf(1 - 1e-4, 61)
    assert np.bincount(drawn & 1, minlength=2) / count == pytest.approx([0.5, 0.5], abs=0.005)


@pytest.mark.parametrize("sigma", [1 << 10, 5 * (1 << 30), LARGEST])
def test_noise_has_the_accounted_standard_deviation(sigma: int) -> None:
    drawn = discrete_gaussians(40_000, sigma, seeded(5)).astype(float)
    assert drawn.mean() == pytest.approx(0, abs=5 * sigma / 200)
    assert drawn.std() == pytest.approx(sigma, rel=0.02)
    assert np.abs(drawn).max() < 6 * sigma


@pytest.mark.parametrize("sigma", [1023, LARGEST + 1])
def test_too_coarse_or_fine_grid_is_refused(sigma: int) -> None:
    with pytest.raises(ValueError, match="is not from"):
        discrete_gaussians(1, sigma)


def exact_threshold(x: Fraction) -> int:
    """The number of the 2^320 equally likely words that are below exp(-x)."""
    digits = Context(prec=150)
    value = digits.exp(digits.divide(Decimal(-x.numerator), Decimal(x.denominator)))
    return int(digits.multiply(value, Decimal(1 << 320)))


@pytest.mark.parametrize("x", [Fraction(1), Fraction(1, 7), Fraction(123456789, 987654321)])
@pytest.mark.parametrize("above", [False, True])
def test_undecidable_float64_words_are_compared_exactly(x: Fraction, above: bool) -> None:
    drawn = exact_threshold(x) + (1 if above else -1) * (1 << 60)
    assert float(drawn >> 256) / 2**64 == pytest.approx(math.exp(-x), rel=2**-50)
    words: Sequence[int] = [drawn >> 256, *((drawn >> shift) % 2**64 for shift in (192, 128, 64, 0))]
    (true,) = step_noise._true_with(np.array([float(x)]), lambda _: x, scripted(*words)).tolist()
    assert true is not above


def test_noise_follows_from_words_and_system_words_differ() -> None:
    assert np.array_equal(
        discrete_gaussians(99, 1 << 30, seeded(1)), discrete_gaussians(99, 1 << 30, seeded(1))
    )
    first, second = (discrete_gaussians(99, 1 << 30, system_words) for _ in range(2))
    assert not np.array_equal(first, second)
