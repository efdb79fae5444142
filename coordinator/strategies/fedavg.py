"""FedAvg (McMahan et al. 2017): everybody gets the mean of all updates, weighted by examples.

Knows nothing of signatures; absent clients fade as the plan says.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from pydantic import BaseModel, ConfigDict

from coordinator.strategies.base import Caps, Cohort, Weighing, fading, keep_own, log_examples, normalised


class Options(BaseModel):
    """There is nothing to choose."""

    model_config = ConfigDict(extra="forbid", frozen=True)


@dataclass(frozen=True, slots=True)
class Strategy:
    """One mean for all who share a (block, role)."""

    needs_signature: ClassVar[bool] = False

    options: Options

    @property
    def gated(self) -> bool:
        """Never: what is served is the one model of all."""
        return False

    @property
    def caps(self) -> Caps | None:
        """None: a common model is everybody's mean, and nobody's own update is the measure of it."""
        return None

    def weigh(self, cohort: Cohort) -> Weighing:
        """w_ij = d^age_j n_j / the sum over all j that i shares something with."""
        count = len(cohort.clients)
        scores = np.broadcast_to(fading(cohort) + log_examples(cohort), (count, count))
        eligible = cohort.shares_any() & cohort.sources()[None, :]
        return Weighing(
            cohort=cohort,
            relevance=keep_own(normalised(scores, eligible), cohort),
            similarity=np.full((count, count), np.nan),
        )
