"""Cosines of changes of clients over common rounds."""

from __future__ import annotations

import numpy as np
import pytest

from coordinator.aggregation.changes import Changes


def changes(cosines: float, lengths: np.ndarray) -> Changes:
    """Return the comparisons of clients that have these cosines in every round."""
    return Changes("abcdef"[: len(lengths)], lengths * cosines, lengths, lengths * cosines)


def test_latecomer_is_not_compared_by_small_late_changes() -> None:
    # Two founders with changes of 1.0 in an early round and .05 in the last, in which a latecomer changes .1.
    founder, late = 0.5 * 1.0 + 0.05**2, 0.1**2
    lengths = np.array(
        [[founder, founder, 0.05 * 0.1], [founder, founder, 0.05 * 0.1], [0.05 * 0.1, 0.05 * 0.1, late]]
    )
    cosines = changes(0.5, lengths).cosines()
    assert cosines[0, 1] == pytest.approx(0.5)
    assert np.isnan(cosines[2, :2]).all()
    assert np.isnan(cosines[:2, 2]).all()


def test_length_of_changes_does_not_matter() -> None:
    norms = np.array([1e-3, 1.0, 1e4])
    cosines = changes(0.25, np.outer(norms, norms)).cosines()
    np.testing.assert_allclose(cosines[np.triu_indices(3, 1)], 0.25)


def test_clients_of_half_of_the_rounds_are_compared() -> None:
    # Of four rounds with equal changes each client is in two, and any two clients in one.
    lengths = np.array([[2.0, 1.0], [1.0, 2.0]])
    assert not np.isnan(changes(1.0, lengths).cosines()).any()


def test_clients_without_a_common_round_are_not_compared() -> None:
    assert np.isnan(changes(1.0, np.eye(2)).cosines()[0, 1])


def test_pairs_of_different_rounds_are_comparable() -> None:
    # Four clients of one task: a, b and c meet in an early round with cosines of .6, and b, c and d in a
    # late one with .2.
    early = np.array([[1.0, 1, 1, 0], [1, 1, 1, 0], [1, 1, 1, 0], [0, 0, 0, 0]])
    late = np.array([[0.0, 0, 0, 0], [0, 1, 1, 1], [0, 1, 1, 1], [0, 1, 1, 1]])
    products = 0.6 * early + 0.2 * late
    cosines = Changes("abcd", products, early + late, products).cosines()
    met = [(0, 1), (0, 2), (1, 2), (1, 3), (2, 3)]
    np.testing.assert_allclose([cosines[pair] for pair in met], 0.6)


def test_unusual_pair_of_a_late_round_stays_unusual() -> None:
    lengths = np.ones((3, 3))
    products = np.array([[1.0, 0.2, -0.4], [0.2, 1.0, 0.2], [-0.4, 0.2, 1.0]])
    cosines = Changes("abc", products, lengths, 0.2 * lengths).cosines()
    np.testing.assert_allclose(cosines[0], [1.0, 0.2, -0.4])
