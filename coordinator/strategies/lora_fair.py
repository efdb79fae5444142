"""LoRA-FAIR (arXiv 2411.14961, ICCV 2025): the mean of A, and the B that makes up for averaging apart.

The mean product dW = sum p_i B_i A_i is not the product of the means. The published server looks for the dB
that brings (B + dB) A near dW by gradient descent on a cosine; in the Frobenius norm it has a closed form.
Absent clients fade as the plan says.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from coordinator.strategies.averaging import mean, mean_of_all
from coordinator.strategies.base import Caps, Cohort, Weighing
from coordinator.strategies.capabilities import Source
from schemas.maths.factors import Factors


class Options(BaseModel):
    """`ridge` is lambda: how much a large correction costs, beside what it leaves of the error."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    ridge: Annotated[float, Field(gt=0)] = 0.01


@dataclass(frozen=True, slots=True)
class Strategy:
    """One mean of A and one corrected B for all clients of a base model."""

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
        """Average by examples, the same for all."""
        return mean_of_all(cohort)

    def combine(self, sources: Sequence[Source]) -> Factors:
        """B' = B + (dW - B A) A^T (A A^T + lambda I)^-1, with A and B the means; dW is never formed.

        B' minimises |dW - B' A|^2 + lambda |B' - B|^2 (Frobenius), so it is never further from dW than B is.
        """
        middle = mean(sources)
        a, b = middle.A.astype(np.float64), middle.B.astype(np.float64)
        gram = a @ a.T  # (r, r)
        # dW A^T = sum p_i B_i (A_i A^T): (d_out, r)
        wanted = sum(
            one.weight * one.factors.B.astype(np.float64) @ (one.factors.A.astype(np.float64) @ a.T)
            for one in sources
        )
        ridged = gram + self.options.ridge * np.eye(len(a))
        correction = np.linalg.solve(ridged, np.asarray(wanted - b @ gram).T).T  # (d_out, r)
        return Factors(middle.A, (b + correction).astype(np.float32))
