"""FLoRA (arXiv 2409.05976, NeurIPS 2024): the stack of all adapters joins the base model.

[B_1 ... B_K] [p_1 A_1; ...; p_K A_K] = sum p_i B_i A_i exactly. Then every client starts with a new A, B = 0.
The stack would show every client's factors side by side, so its product is served in factors of its own. An
adapter joins the base model once, so an absent client's last adapter does not count.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from coordinator.strategies import base
from coordinator.strategies.averaging import mean_of_all
from coordinator.strategies.base import Cohort, Weighing
from coordinator.strategies.capabilities import BaseDelta, Source, Traits
from schemas.maths.factors import Factors, recompressed, side_by_side


@dataclass(frozen=True, slots=True)
class Strategy(base.Strategy):
    """One changed base model for all clients of a base model, and no common adapter."""

    traits: ClassVar[Traits] = Traits(
        per_client="stacks A and B of each client side by side",
    )

    def weigh(self, cohort: Cohort) -> Weighing:
        return mean_of_all(cohort, present_only=True)

    def base_delta(self, sources: Sequence[Source]) -> BaseDelta:
        """Return sum p_i B_i A_i over the updates of this round; clients start with a new adapter."""
        empty = sources[0].factors.first(0)
        present = [
            Factors(source.factors.A * np.float32(source.weight), source.factors.B)
            for source in sources
            if not source.age
        ]
        return BaseDelta(None, recompressed(side_by_side([empty, *present])))
