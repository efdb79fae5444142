"""The ranks that a client trains: unimportant ranks are dropped, and some return. Pure.

A rank of a module is idle while `IDLE_AFTER` rounds are counted in which its importance was below the cut.
Idle ranks are neither in memory nor in the computation, and their count stays until they return.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
Ranks = NDArray[np.bool_]

IDLE_AFTER: Final = 2
"""Rounds in a row with an importance below the cut, after which a rank is dropped."""


def active(below: Floats) -> Ranks:
    """Return the ranks (M, r) that are trained, by their counts of rounds below the cut."""
    return below < IDLE_AFTER


def counted(below: Floats, importance: Floats, cut: float) -> Floats:
    """Return the counts (M, r) after a round with these importances (M, r).

    Of a module whose ranks would all be idle, the most important one of those that were trained stays.
    """
    trained = active(below)
    after = np.where(trained, np.where(importance < cut, below + 1, 0), below).astype(np.float32)
    for row in np.flatnonzero(~active(after).any(axis=1)):
        best = np.where(trained[row], importance[row], -np.inf).argmax()
        after[row, best] = IDLE_AFTER - 1
    return after


def returning(below: Floats, gradients: Floats) -> Ranks:
    """Return the idle ranks (M, r) whose gradient exceeds that of every trained rank of their module.

    `gradients` (M, r) are the L1 norms of the loss's gradients by the columns of B, with idle columns at 0.
    """
    trained = active(below)
    largest = np.where(trained, gradients, -np.inf).max(axis=1, keepdims=True)  # (M, 1)
    return np.asarray(~trained & (gradients > largest))
