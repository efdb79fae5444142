"""FedSA-LoRA (arXiv 2410.01463, ICLR 2025): A is everybody's, B is each client's own.

Both train; A, in which clients are alike, is averaged by examples, and B, which tells them apart, never
leaves the client. Absent clients fade as the plan says.
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
    """One mean of A for all clients of a base model."""

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
        """Only A does: B is what makes a client's adapter its own."""
        return factor_of(tensor) == "A"

    def weigh(self, cohort: Cohort) -> Weighing:
        """Average by examples, the same for all."""
        return mean_of_all(cohort)
