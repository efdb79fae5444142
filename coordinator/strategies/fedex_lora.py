"""FedEx-LoRA (arXiv 2410.09432, ACL 2025): the means of A and B, and what they leave out into the base model.

mean(B_i A_i) = B A + R exactly, and R has at most (K - 1) r ranks, so it travels as factors. Every client
counts the same whatever its examples, as published; absent ones fade as the plan says.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

from pydantic import BaseModel, ConfigDict, Field

from coordinator.factors import Source, fitted, mean, recompressed, residual
from coordinator.lora_methods import Folded
from coordinator.strategies.averaging import mean_of_all
from coordinator.strategies.base import Caps, Cohort, Weighing


class Options(BaseModel):
    """`truncate_rank`: send no more ranks of R than these, the nearest there are; None = R is exact."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    truncate_rank: Annotated[int, Field(ge=1)] | None = None


@dataclass(frozen=True, slots=True)
class Strategy:
    """One A, one B and one base model for all clients of a base model."""

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

    def weigh(self, cohort: Cohort) -> Weighing:
        """Average uniformly, the same for all."""
        return mean_of_all(cohort, by_examples=False)

    def fold(self, sources: Sequence[Source]) -> Folded:
        """Serve the means A and B; fold R = sum p_i B_i A_i - B A."""
        middle = mean(sources)
        left_out = residual(sources, middle)
        most = self.options.truncate_rank
        if most is not None and left_out.rank > most:
            return Folded(middle, recompressed(left_out, most))
        return Folded(middle, fitted(left_out))
