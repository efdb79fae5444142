"""FedSA-LoRA (arXiv 2410.01463, ICLR 2025): A is averaged by examples, B never leaves its client.

Both are trained: clients are alike in A and differ in B. Absent clients decay as planned.
"""

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
from schemas.maths.adapter import factor_of


class Options(BaseModel):
    """There are no options."""

    model_config = ConfigDict(extra="forbid", frozen=True)


@dataclass(frozen=True, slots=True)
class Strategy(base.Strategy):
    """One mean of A for all clients of a base model."""

    traits: ClassVar[Traits] = Traits(lora_only=True, part_travels=True, sums=True)

    options: Options

    def travels(self, tensor: str) -> bool:
        return factor_of(tensor) == "A"

    def weigh(self, cohort: Cohort) -> Weighing:
        return mean_of_all(cohort)

    def step(self, joint: Joint, total: Total) -> Iterator[Revised]:
        return summed_mean(joint, total)
