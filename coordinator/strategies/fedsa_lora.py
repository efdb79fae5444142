"""FedSA-LoRA (arXiv 2410.01463, ICLR 2025): A is averaged by examples, B never leaves its client.

Both are trained: clients are alike in A and differ in B. Absent clients decay as planned.
"""

from __future__ import annotations

from dataclasses import dataclass

from coordinator.strategies.averaging import Averaging


@dataclass(frozen=True, slots=True)
class Strategy(Averaging):
    """One mean of A for all clients of a base model."""
