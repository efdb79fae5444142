"""The discrete Gaussian has its stated distribution at all scales, from fair random words."""

from __future__ import annotations

import math
import random
from collections import Counter
from fractions import Fraction

import numpy as np
import pytest

from client_agent.privacy.release import discrete_gaussian

DRAWS = 20_000


@pytest.mark.parametrize("variance", [Fraction(1, 4), Fraction(3), Fraction(50)])
def test_integers_have_the_discrete_gaussian_probabilities(variance: Fraction) -> None:
    below = random.Random(7).randrange
    counts = Counter(discrete_gaussian(variance, below) for _ in range(DRAWS))
    weight = {x: math.exp(-(x**2) / (2 * variance)) for x in range(-60, 61)}
    total = sum(weight.values())
    for x, probability in weight.items():
        expected = DRAWS * probability / total
        assert abs(counts[x] - expected) <= 5 * math.sqrt(expected) + 1, x
    assert set(counts) <= set(weight)


def test_wide_discrete_gaussian_has_gaussian_moments_and_tails() -> None:
    sigma = 2.37 * 2**30
    below = random.Random(8).randrange
    drawn = np.array([discrete_gaussian(Fraction(sigma) ** 2, below) for _ in range(DRAWS)]) / sigma
    assert abs(drawn.mean()) < 5 / math.sqrt(DRAWS)
    assert drawn.var() == pytest.approx(1, abs=5 * math.sqrt(2 / DRAWS))
    for bound in (1, 2, 3):
        share = math.erfc(bound / math.sqrt(2))
        assert (np.abs(drawn) > bound).mean() == pytest.approx(share, abs=5 * math.sqrt(share / DRAWS))


def test_low_bits_of_noise_are_uniform() -> None:
    """The last digits must not reveal the summand: those of a wide distribution are uniform."""
    below = random.Random(9).randrange
    last = Counter(discrete_gaussian(Fraction(2**40), below) % 16 for _ in range(DRAWS))
    for count in last.values():
        assert count == pytest.approx(DRAWS / 16, abs=5 * math.sqrt(DRAWS / 16))
    assert len(last) == 16
