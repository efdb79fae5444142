"""FFA-LoRA (arXiv 2403.12313, ICLR 2024): A is frozen at its seeded start, so that the mean of B is exact.

sum p_i B_i A = (sum p_i B_i) A: with one A for all clients, averaging B averages the products. Both sides
compute A from the plan's seed, and it costs no byte. Absent clients decay as planned.
"""

from __future__ import annotations

from dataclasses import dataclass

from coordinator.strategies.averaging import Averaging


@dataclass(frozen=True, slots=True)
class Strategy(Averaging):
    """One mean of B for all clients of a base model, over the same frozen A."""
