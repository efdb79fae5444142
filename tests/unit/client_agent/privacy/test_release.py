"""Releases: bounded per record, randomly sampled, unbiased, with the stated reliability."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from client_agent.privacy.release import STEPS, Mechanism, averaged, on_grid, release, sample_records

FLOATS = st.floats(-1e300, 1e300, allow_subnormal=True) | st.sampled_from([0.0, 0.6, 0.8, 1.0, 1e-30])


@settings(deadline=None)
@given(arrays(np.float64, st.integers(1, 9), elements=FLOATS), st.sampled_from([1.0, 0.3, 7.5]))
def test_record_contributes_at_most_the_clip(vector: np.ndarray, clip: float) -> None:
    steps = on_grid(vector, clip)
    assert sum(int(step) ** 2 for step in steps) <= STEPS**2
    if math.hypot(*vector) <= clip:
        np.testing.assert_allclose(steps * (clip / STEPS), vector, atol=1.5 * clip / STEPS)
    assert (np.abs(steps) * (clip / STEPS) <= np.abs(vector) * (1 + 1e-12)).all()


def test_record_without_finite_gradient_adds_nothing() -> None:
    for bad in (np.nan, np.inf, -np.inf):
        assert not on_grid(np.array([1.0, bad]), 1.0).any()


def test_records_are_drawn_independently_with_equal_probability() -> None:
    mechanism = Mechanism(sampled=3, records=12, noise_multiplier=1.0, clip=1.0, dim=1)
    below = random.Random(1).randrange
    draws = [sample_records(mechanism, below) for _ in range(4000)]
    counts = np.bincount([record for draw in draws for record in draw], minlength=12) / 4000
    assert counts == pytest.approx(0.25, abs=5 * np.sqrt(0.25 * 0.75 / 4000))
    sizes = np.array([len(draw) for draw in draws])
    assert sizes.var() == pytest.approx(12 * 0.25 * 0.75, rel=0.12)  # binomial: nobody's fate is another's
    all_records = Mechanism(sampled=12, records=12, noise_multiplier=1.0, clip=1.0, dim=1)
    assert sample_records(all_records, below) == list(range(12))


@pytest.mark.slow
def test_release_is_clipped_mean_with_accounted_noise() -> None:
    mechanism = Mechanism(sampled=20, records=20, noise_multiplier=1.5, clip=2.0, dim=3)
    vectors = [np.array([4.0, 0.0, 0.0])] * 10 + [np.array([0.0, 0.5, 0.0])] * 10
    below = random.Random(2).randrange
    released = np.array([release(vectors, mechanism, below) for _ in range(3000)])
    assert mechanism.noise_deviation == pytest.approx(1.5 * 2.0 / 20)
    np.testing.assert_allclose(
        released.mean(0), [1.0, 0.25, 0.0], atol=5 * mechanism.noise_deviation / np.sqrt(3000)
    )
    np.testing.assert_allclose(released.std(0), mechanism.noise_deviation, rtol=0.08)
    steps = released * mechanism.sampled * STEPS / mechanism.clip
    assert (np.abs(steps - np.round(steps)) < 1e-3).all()  # nothing but whole steps of the grid


def test_averaging_three_releases_divides_their_variance_by_three() -> None:
    mechanism = Mechanism(sampled=10, records=40, noise_multiplier=2.0, clip=1.0, dim=2)
    released = None
    releases = [np.array([1.0, 0.0]), np.array([0.0, 1.0]), np.array([2.0, 2.0])]
    for number, fresh in enumerate(releases, start=1):
        released = averaged(released, fresh, mechanism, epsilon=number / 10)
    assert released is not None
    np.testing.assert_allclose(released.mean, [1.0, 1.0])
    assert released.noise_variance == pytest.approx(mechanism.noise_deviation**2 / 3)
    assert (released.releases, released.epsilon) == (3, 0.3)


@pytest.mark.slow
@pytest.mark.parametrize(("sampled", "releases"), [(64, 1), (64, 8), (16, 8)])
def test_reliability_is_expected_cosine_of_two_silos(sampled: int, releases: int) -> None:
    """From noise, sample and clip alone, which are no secret: the records are not looked at for it."""
    rng = np.random.default_rng(3)
    below = random.Random(4).randrange
    mechanism = Mechanism(sampled=sampled, records=64, noise_multiplier=1.2, clip=1.0, dim=32)
    task = np.zeros(32)
    task[0] = 3.0

    def silo() -> tuple[np.ndarray, float]:
        records = task + rng.normal(size=(64, 32))  # longer than the clip, as gradients are
        released = None
        for _ in range(releases):
            chosen = [records[record] for record in sample_records(mechanism, below)]
            released = averaged(released, release(chosen, mechanism, below), mechanism, epsilon=0.0)
        assert released is not None
        return released.mean / np.linalg.norm(released.mean), released.reliability

    silos = [silo() for _ in range(40)]
    unit = np.array([direction for direction, _ in silos])
    cosine = (unit @ unit.T)[np.triu_indices(40, 1)].mean()
    assert np.mean([reliability for _, reliability in silos]) == pytest.approx(cosine, abs=0.05)
    assert 0.1 < cosine < 0.95
