"""HetLoRA (arXiv 2401.06432, EMNLP 2024): ranks differ by client, and larger adapters count for more.

A and B are padded with zeros to the largest rank, averaged with weights s_i / sum s of s_i = |B_i A_i|, and
cut to each client's own rank. Examples do not count; absent clients decay as planned.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from coordinator.strategies import base
from coordinator.strategies.averaging import mean_of_all
from coordinator.strategies.base import Cohort, Weighing
from coordinator.strategies.capabilities import Source, Traits, weighted_mean
from schemas.maths.factors import Factors
from schemas.strategies.lora_factors import HetLoraOptions


@dataclass(frozen=True, slots=True)
class Strategy(base.Strategy):
    """One mean for all clients of a base model, cut to each client's rank."""

    traits: ClassVar[Traits] = Traits(
        combines=True,
        rescales=True,
        per_client="weights each adapter by its own norm, and ranks differ by client",
    )

    options: HetLoraOptions

    def weigh(self, cohort: Cohort) -> Weighing:
        """Weight all clients equally; `combine` multiplies by strengths, which relevance cannot show."""
        return mean_of_all(cohort, by_examples=False)

    def strength(self, factors: Factors) -> float:
        """s = |B A| (Frobenius) = sqrt(tr(B^T B A A^T)), from matrices of r x r."""
        a, b = factors.A.astype(np.float64), factors.B.astype(np.float64)
        return float(np.sqrt(max(0.0, float(np.sum((b.T @ b) * (a @ a.T))))))

    def combine(self, sources: Sequence[Source]) -> Factors:
        """p_i = w_i s_i / sum w s; A = sum p_i [A_i; 0], B = sum p_i [B_i 0]; p = w where all s are 0."""
        strengths = np.array([source.weight * self.strength(source.factors) for source in sources])
        total = float(strengths.sum())
        shares = strengths / total if total > 0 else [source.weight for source in sources]
        largest = max(source.factors.rank for source in sources)
        return weighted_mean(
            [
                replace(source, factors=source.factors.of_rank(largest), weight=float(share))
                for source, share in zip(sources, shares, strict=True)
            ]
        )
