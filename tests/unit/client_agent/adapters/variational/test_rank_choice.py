"""Choice of active ranks: dropped after rounds of little importance, returned by their gradient."""

from __future__ import annotations

import numpy as np

from client_agent.adapters.variational.adapter import active, counted, returning


def counts(*rows: list[float]) -> np.ndarray:
    return np.array(rows, np.float32)


def test_rank_is_dropped_after_two_rounds_below_cut() -> None:
    below = counts([0, 0, 0])
    for importance, expected in (
        ([0.1, 0.1, 2.0], [True, True, True]),
        ([0.9, 0.1, 2.0], [True, False, True]),
        ([0.1, 0.1, 2.0], [True, False, True]),  # the first was above the cut in between
        ([0.1, 0.1, 2.0], [False, False, True]),
    ):
        below = counted(below, counts(importance), cut=0.5)
        assert active(below).tolist() == [expected]


def test_idle_rank_stays_idle_at_any_importance() -> None:
    below = counted(counts([2, 0]), counts([9.0, 1.0]), cut=0.5)
    assert active(below).tolist() == [[False, True]]


def test_most_important_trained_rank_is_never_dropped() -> None:
    below = counted(counts([1, 1, 2], [0, 0, 0]), counts([0.1, 0.2, 0.4], [1, 1, 1]), cut=0.5)
    assert active(below).tolist() == [[False, True, False], [True, True, True]]
    assert active(counted(below, counts([0.1, 0.2, 0.4], [1, 1, 1]), cut=0.5))[0].sum() == 1


def test_cut_of_zero_drops_no_rank() -> None:
    below = counts([0, 0])
    for _ in range(3):
        below = counted(below, counts([1e-6, 1.0]), cut=0.0)
    assert active(below).all()


def test_idle_rank_returns_where_loss_is_steepest() -> None:
    below = counts([2, 0, 0], [2, 0, 2])
    gradients = counts([1.0, 0.5, 2.0], [1.0, 0.5, 0.2])
    assert returning(below, gradients).tolist() == [[False, False, False], [True, False, False]]
