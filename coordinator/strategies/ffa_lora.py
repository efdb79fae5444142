"""FFA-LoRA (arXiv 2403.12313, ICLR 2024): A is frozen at its seeded start, so that the mean of B is exact.

sum p_i B_i A = (sum p_i B_i) A: with one A for all clients, averaging B averages the products. Both sides
compute A from the plan's seed, and it costs no byte. Absent clients decay as planned.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from coordinator.strategies import averaging
from coordinator.strategies.capabilities import Traits
from schemas.maths.adapter import factor_of


class Options(averaging.Options):
    """How updates are combined."""


@dataclass(frozen=True, slots=True)
class Strategy(averaging.Averaging):
    """One mean of B for all clients of a base model, over the same frozen A."""

    traits: ClassVar[Traits] = Traits(lora_only=True, part_travels=True, sums=True, only_steps=True)

    options: Options

    def travels(self, tensor: str) -> bool:
        return factor_of(tensor) == "B"
