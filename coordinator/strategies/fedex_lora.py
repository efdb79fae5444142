"""FedEx-LoRA (arXiv 2410.09432, ACL 2025): clients get the means of A and B, the base model their error.

mean(B_i A_i) = B A + R exactly. R has at most (K - 1) r ranks and travels as factors of its own: from the
factors in its sum every B_i and A_i - A_n could be read. Clients count equally, whatever their examples.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from coordinator.strategies import base
from coordinator.strategies.averaging import mean_of_all
from coordinator.strategies.base import Cohort, Weighing
from coordinator.strategies.capabilities import BaseDelta, Source, Traits, weighted_mean
from schemas.maths.factors import Factors, recompressed, side_by_side
from schemas.strategies.lora_factors import FedExLoraOptions


@dataclass(frozen=True, slots=True)
class Strategy(base.Strategy):
    """One A, one B and one base model for all clients of a base model."""

    traits: ClassVar[Traits] = Traits(
        per_client="needs the product B A of each client, which the sums of A and B do not give",
    )

    options: FedExLoraOptions

    def weigh(self, cohort: Cohort) -> Weighing:
        """Average the updates of this round equally: the residual of earlier ones is in the base model."""
        return mean_of_all(cohort, by_examples=False, present_only=True)

    def base_delta(self, sources: Sequence[Source]) -> BaseDelta:
        mean = weighted_mean(sources)
        return BaseDelta(mean, recompressed(_residual(sources, mean), self.options.truncate_rank))


def _residual(sources: Sequence[Source], mean: Factors) -> Factors:
    """Return R = sum p_i B_i A_i - B A in n - 1 times the rank, exactly.

    R = sum p_i (B_i - B)(A_i - A), and the p_i (B_i - B) sum to 0, so the last one follows from the rest:
    R = sum over i < n of p_i (B_i - B)(A_i - A_n).
    """
    *first, last = sources
    terms = [
        Factors(
            source.factors.A - last.factors.A,
            (source.weight * (source.factors.B - mean.B)).astype(np.float32),
        )
        for source in first
    ]
    return side_by_side([mean.first(0), *terms])
