"""FFA-LoRA (arXiv 2403.12313, ICLR 2024): A stays where the seed put it, and the mean of B is exact.

sum p_i B_i A = (sum p_i B_i) A: with one frozen A for all, averaging B averages what the adapters do. A
follows from the plan's seed on both sides and costs no byte. Absent clients fade as the plan says.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from pydantic import BaseModel, ConfigDict

from coordinator.strategies.averaging import mean_of_all
from coordinator.strategies.base import Caps, Cohort, Weighing
from schemas.maths.adapter import factor_of


class Options(BaseModel):
    """There is nothing to choose."""

    model_config = ConfigDict(extra="forbid", frozen=True)


@dataclass(frozen=True, slots=True)
class Strategy:
    """One mean of B for all clients of a base model, over the same frozen A."""

    needs_signature: ClassVar[bool] = False

    options: Options

    @property
    def gated(self) -> bool:
        """Never: an ordinary LoRA has no global branch."""
        return False

    @property
    def caps(self) -> Caps | None:
        """None: what is common is everybody's mean."""
        return None

    def travels(self, tensor: str) -> bool:
        """Only B does: A is the same for everybody from the start."""
        return factor_of(tensor) == "B"

    def weigh(self, cohort: Cohort) -> Weighing:
        """Average by examples, the same for all."""
        return mean_of_all(cohort)
