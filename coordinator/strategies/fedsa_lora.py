"""FedSA-LoRA (arXiv 2410.01463, ICLR 2025): A is averaged by examples, B never leaves its client.

Both are trained: clients are alike in A and differ in B. Absent clients decay as planned.
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
    """One mean of A for all clients of a base model."""

    traits: ClassVar[Traits] = Traits(lora_only=True, part_travels=True, sums=True)

    options: Options

    def travels(self, tensor: str) -> bool:
        return factor_of(tensor) == "A"

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
