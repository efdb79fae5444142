"""FedAvg (McMahan et al. 2017): every client gets the mean of all updates, weighted by examples."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from pydantic import BaseModel, ConfigDict

from coordinator.strategies import base
from coordinator.strategies.averaging import mean_of_all, summed_mean
from coordinator.strategies.base import Cohort, Weighing
from coordinator.strategies.capabilities import Traits
from coordinator.totals import Joint, Revised, Total


class Options(BaseModel):
    """There are no options."""

    model_config = ConfigDict(extra="forbid", frozen=True)


@dataclass(frozen=True, slots=True)
class Strategy(base.Strategy):
    """One mean for all clients that share a (block, role); absent clients decay as planned."""

    traits: ClassVar[Traits] = Traits(sums=True)

    options: Options

    def weigh(self, cohort: Cohort) -> Weighing:
        return mean_of_all(cohort)

    def step(self, joint: Joint, total: Total) -> Iterator[Revised]:
        return summed_mean(joint, total)
