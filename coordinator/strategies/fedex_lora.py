"""FedEx-LoRA (arXiv 2410.09432, ACL 2025): the means of A and B, and what they leave out into the base model.

mean(B_i A_i) = B A + R exactly, and R has at most (K - 1) r ranks, so it travels as factors: not
those that are added up, from which every B_i and A_i - A_n could be read. Every client
counts the same whatever its examples, as published; absent ones fade as the plan says.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from coordinator.strategies.averaging import mean, mean_of_all
from coordinator.strategies.base import Caps, Cohort, Weighing
from coordinator.strategies.capabilities import Folded, Source
from schemas.maths.factors import Factors, recompressed, side_by_side


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
        """Average uniformly those who delivered this round: what the others left out is folded already."""
        return mean_of_all(cohort, by_examples=False, present_only=True)

    def fold(self, sources: Sequence[Source]) -> Folded:
        """Serve the means A and B; fold R = sum p_i B_i A_i - B A."""
        middle = mean(sources)
        left_out = _left_out(sources, middle)
        return Folded(middle, recompressed(left_out, self.options.truncate_rank))


def _left_out(sources: Sequence[Source], middle: Factors) -> Factors:
    """Give what the means leave out: sum p_i B_i A_i - B A, in n - 1 times the rank, exactly.

    It is sum p_i (B_i - B)(A_i - A), and since the p_i (B_i - B) sum to 0 the last one is told by the others:
    sum over i < n of p_i (B_i - B)(A_i - A_n).
    """
    *others, last = sources
    parts = [
        Factors(one.factors.A - last.factors.A, (one.weight * (one.factors.B - middle.B)).astype(np.float32))
        for one in others
    ]
    return side_by_side([middle.first(0), *parts])
