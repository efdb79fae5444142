"""FLoRA (arXiv 2409.05976, NeurIPS 2024): adapters are stacked and folded into the base model.

[B_1 ... B_K] [p_1 A_1; ...; p_K A_K] = sum p_i B_i A_i exactly. Then everybody begins with a new A, B = 0.
The stack shows every client's factors side by side, so its product is served in factors of its own. What was
folded once is never folded again, so an absent client's last adapter does not count.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from pydantic import BaseModel, ConfigDict

from coordinator.strategies.averaging import mean_of_all
from coordinator.strategies.base import Caps, Cohort, Weighing
from coordinator.strategies.capabilities import Folded, Source
from schemas.maths.factors import Factors, recompressed, side_by_side


class Options(BaseModel):
    """There is nothing to choose."""

    model_config = ConfigDict(extra="forbid", frozen=True)


@dataclass(frozen=True, slots=True)
class Strategy:
    """One base model for all clients of a base model, and no common adapter."""

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
        """Average those who sent something this round by examples, the same for all."""
        return mean_of_all(cohort, present_only=True)

    def fold(self, sources: Sequence[Source]) -> Folded:
        """Fold sum p_i B_i A_i over those who are here; serve nothing to go on from."""
        none = sources[0].factors.first(0)
        here = [
            Factors(one.factors.A * np.float32(one.weight), one.factors.B) for one in sources if not one.age
        ]
        return Folded(None, recompressed(side_by_side([none, *here])))
