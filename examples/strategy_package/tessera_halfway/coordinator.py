"""The coordinator's half: relevance is `share_of_own` for the client itself, and equal among its peers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from coordinator.strategies import base
from coordinator.strategies.base import Cohort, Weighing
from coordinator.strategies.capabilities import Traits

from .options import Options


@dataclass(frozen=True, slots=True)
class Strategy(base.Strategy):
    """Mix own and mean of peers; a newcomer is served the mean of its peers."""

    traits: ClassVar[Traits] = Traits()

    options: Options

    def weigh(self, cohort: Cohort) -> Weighing:
        """Return relevance (N, N) over clients that share a module and have an update; rows sum to 1 or 0."""
        sources = cohort.shares_any() & cohort.sources()[None, :]
        itself = np.eye(len(cohort.clients), dtype=bool)
        share = self.options.share_of_own
        weights = share * _rows(sources & itself) + (1 - share) * _rows(sources & ~itself)
        return Weighing(cohort, _rows(weights), np.full(weights.shape, np.nan))


def _rows(weights: np.ndarray) -> np.ndarray:
    """Return rows (N, N) scaled to a sum of 1; a row of zeros stays."""
    total = weights.sum(axis=1, keepdims=True)
    return np.divide(weights, total, out=np.zeros(weights.shape), where=total > 0)
