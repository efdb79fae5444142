"""FFA-LoRA (arXiv 2403.12313, ICLR 2024): A is frozen at its seeded start, so that the mean of B is exact.

sum p_i B_i A = (sum p_i B_i) A: with one A for all clients, averaging B averages the products. Both sides
compute A from the plan's seed, and it costs no byte. Absent clients decay as planned.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

from pydantic import BaseModel, ConfigDict

from coordinator.strategies import base
from coordinator.strategies.averaging import Aggregate, aggregated, mean_of_all, summed_mean, unfit_for_sums
from coordinator.strategies.base import Cohort, Robust, Weighing
from coordinator.strategies.capabilities import Traits, Unfit
from coordinator.totals import Joint, Revised, Total
from schemas.maths.adapter import factor_of
from schemas.messages.federations import FederationPlan


class Options(BaseModel):
    """How updates become one."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    aggregate: Aggregate = "mean"
    """How the values of clients become one: `mean`, or value by value `median` or `trimmed_mean`, for which
    all clients count alike.
    """


@dataclass(frozen=True, slots=True)
class Strategy(base.Strategy):
    """One mean of B for all clients of a base model, over the same frozen A."""

    traits: ClassVar[Traits] = Traits(lora_only=True, part_travels=True, sums=True)

    options: Options

    def travels(self, tensor: str) -> bool:
        return factor_of(tensor) == "B"

    @property
    def robust(self) -> Robust | None:
        how = self.options.aggregate
        return None if how == "mean" else partial(aggregated, how=how)

    def unfit(self, plan: FederationPlan) -> Unfit | None:
        return unfit_for_sums(self.options.aggregate, plan)

    def weigh(self, cohort: Cohort) -> Weighing:
        return mean_of_all(cohort)

    def step(self, joint: Joint, total: Total) -> Iterator[Revised]:
        return summed_mean(joint, total)
