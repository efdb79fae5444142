"""FedAvg (McMahan et al. 2017): everybody gets the mean of all updates, weighted by examples.

Knows nothing of signatures; absent clients fade as the plan says.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from pydantic import BaseModel, ConfigDict

from coordinator.strategies.averaging import mean_of_all
from coordinator.strategies.base import Caps, Cohort, Weighing


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
        """Average by examples, the same for all."""
        return mean_of_all(cohort)
