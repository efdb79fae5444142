"""LoRA-FAIR (arXiv 2411.14961, ICCV 2025): the mean of A, and a B corrected for averaging A and B apart.

The mean product dW = sum p_i B_i A_i is not the product of the means. The published server finds the dB
that brings (B + dB) A near dW by gradient descent on a cosine; in the Frobenius norm it has a closed form.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from coordinator.strategies import base
from coordinator.strategies.averaging import mean_of_all
from coordinator.strategies.base import Cohort, Weighing
from coordinator.strategies.capabilities import Source, Traits, weighted_mean
from schemas.maths.factors import Factors
from schemas.strategies.lora_factors import LoraFairOptions


@dataclass(frozen=True, slots=True)
class Strategy(base.Strategy):
    """One mean of A and one corrected B for all clients of a base model; absent clients decay as planned."""

    traits: ClassVar[Traits] = Traits(
        combines=True,
        per_client="needs the product B A of each client, which the sums of A and B do not give",
    )

    options: LoraFairOptions

    def weigh(self, cohort: Cohort) -> Weighing:
        return mean_of_all(cohort)

    def combine(self, sources: Sequence[Source]) -> Factors:
        """B' = B + (dW - B A) A^T (A A^T + lambda I)^-1, with A and B the means; dW is never formed.

        B' minimises |dW - B' A|^2 + lambda |B' - B|^2 (Frobenius), so it is never further from dW than B is.
        """
        mean = weighted_mean(sources)
        a, b = mean.A.astype(np.float64), mean.B.astype(np.float64)
        gram = a @ a.T  # (r, r)
        # dW A^T = sum p_i B_i (A_i A^T): (d_out, r)
        target = sum(
            source.weight * source.factors.B.astype(np.float64) @ (source.factors.A.astype(np.float64) @ a.T)
            for source in sources
        )
        ridged = gram + self.options.ridge * np.eye(len(a))
        correction = np.linalg.solve(ridged, np.asarray(target - b @ gram).T).T  # (d_out, r)
        return Factors(mean.A, (b + correction).astype(np.float32))
