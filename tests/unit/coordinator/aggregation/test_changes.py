"""Cosines of changes of clients over common rounds."""

from __future__ import annotations

import numpy as np
import pytest

from coordinator.aggregation.changes import Changes


def test_latecomer_is_not_compared_by_small_late_changes() -> None:
    # Two founders with changes of 1.0 in an early round and .05 in the last, in which a latecomer changes .1.
    founder, late = 0.5 * 1.0 + 0.05**2, 0.1**2
    lengths = np.array(
        [[founder, founder, 0.05 * 0.1], [founder, founder, 0.05 * 0.1], [0.05 * 0.1, 0.05 * 0.1, late]]
    )
    cosines = Changes("abc", lengths * 0.5, lengths).cosines()
    assert cosines[0, 1] == pytest.approx(0.5)
    assert np.isnan(cosines[2, :2]).all()
    assert np.isnan(cosines[:2, 2]).all()


def test_length_of_changes_does_not_matter() -> None:
    norms = np.array([1e-3, 1.0, 1e4])
    lengths = np.outer(norms, norms)
    np.testing.assert_allclose(Changes("abc", lengths * 0.25, lengths).cosines(), 0.25)


def test_clients_of_half_of_the_rounds_are_compared() -> None:
    # Of four rounds with equal changes each client is in two, and any two clients in one.
    lengths = np.array([[2.0, 1.0], [1.0, 2.0]])
    assert not np.isnan(Changes("ab", lengths, lengths).cosines()).any()


def test_clients_without_a_common_round_are_not_compared() -> None:
    assert np.isnan(Changes("ab", np.eye(2), np.eye(2)).cosines()[0, 1])
