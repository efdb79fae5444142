"""FedSA-LoRA (arXiv 2410.01463, ICLR 2025): A is averaged by examples, B never leaves its client.

Both are trained: clients are alike in A and differ in B. Absent clients decay as planned.
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
    """One mean of A for all clients of a base model."""

    traits: ClassVar[Traits] = Traits(lora_only=True, part_travels=True, sums=True, only_steps=True)

    options: Options

    def travels(self, tensor: str) -> bool:
        return factor_of(tensor) == "A"
