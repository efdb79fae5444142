"""HetLoRA (arXiv 2401.06432, EMNLP 2024): ranks differ by client, and who does more counts for more.

A and B are padded with zeros to the largest rank, averaged with weights s_i / sum s of s_i = |B_i A_i|, and
cut to each client's own rank. Examples do not count; absent clients fade as the plan says.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from coordinator.strategies.averaging import mean, mean_of_all
from coordinator.strategies.base import Caps, Cohort, Weighing
from coordinator.strategies.capabilities import Source
from schemas.maths.factors import Factors


class Options(BaseModel):
    """What ranks clients may have, and how they prune their own.

    `r_min` is the least rank, `adapter.rank` the largest. A client's last ranks, from `decay` times its rank
    on, are drawn towards zero by `pruning` times their size, and go when they have become smaller in a round.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    r_min: Annotated[int, Field(ge=1, le=1024)] = 1
    decay: Annotated[float, Field(gt=0, lt=1)] = 0.99
    pruning: Annotated[float, Field(ge=0)] = 1e-3


@dataclass(frozen=True, slots=True)
class Strategy:
    """One mean for all clients of a base model, cut to each one's rank."""

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

    @property
    def least_rank(self) -> int:
        """The option `r_min`."""
        return self.options.r_min

    def weigh(self, cohort: Cohort) -> Weighing:
        """Let all count the same before their adapters are seen; relevance shows this."""
        return mean_of_all(cohort, by_examples=False)

    def strength(self, factors: Factors) -> float:
        """s = |B A| (Frobenius) = sqrt(tr(B^T B A A^T)), from matrices of r x r."""
        a, b = factors.A.astype(np.float64), factors.B.astype(np.float64)
        return float(np.sqrt(max(0.0, float(np.sum((b.T @ b) * (a @ a.T))))))

    def combine(self, sources: Sequence[Source]) -> Factors:
        """p_i = w_i s_i / sum w s; A = sum p_i [A_i; 0], B = sum p_i [B_i 0]; w alone where nobody learnt."""
        strengths = np.array([one.weight * self.strength(one.factors) for one in sources])
        total = float(strengths.sum())
        shares = strengths / total if total > 0 else [one.weight for one in sources]
        most = max(one.factors.rank for one in sources)
        return mean(
            [
                replace(one, factors=one.factors.of_rank(most), weight=float(share))
                for one, share in zip(sources, shares, strict=True)
            ]
        )
