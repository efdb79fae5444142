"""FFA-LoRA (arXiv 2403.12313, ICLR 2024): A is frozen at its seeded start, so that the mean of B is exact.

sum p_i B_i A = (sum p_i B_i) A: with one A for all clients, averaging B averages the products. Both sides
compute A from the plan's seed, and it costs no byte. Absent clients decay as planned.
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
    """One mean of B for all clients of a base model, over the same frozen A."""

    traits: ClassVar[Traits] = Traits(lora_only=True, part_travels=True, sums=True)

    options: Options

    def travels(self, tensor: str) -> bool:
        return factor_of(tensor) == "B"

    def weigh(self, cohort: Cohort) -> Weighing:
        return mean_of_all(cohort)

    def step(self, joint: Joint, total: Total) -> Iterator[Revised]:
        return summed_mean(joint, total)
