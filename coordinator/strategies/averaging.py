"""The plain means that several methods start from: of all who share something, and of their A and B.

No strategy by itself.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from coordinator.lora_methods import Source
from coordinator.strategies.base import Cohort, Weighing, fading, keep_own, log_examples, normalised
from schemas.maths.factors import Factors


def mean_of_all(cohort: Cohort, *, by_examples: bool = True, present_only: bool = False) -> Weighing:
    """w_ij = d^age_j n_j / the sum over all j that i shares something with.

    n_j = 1 without `by_examples`; with `present_only` whoever sent nothing this round does not count.
    """
    count = len(cohort.clients)
    scores = fading(cohort) + (log_examples(cohort) if by_examples else 0.0)
    eligible = cohort.shares_any() & cohort.sources()[None, :]
    if present_only:
        eligible &= np.array([facts.age == 0 for facts in cohort.clients], bool)[None, :]
    return Weighing(
        cohort=cohort,
        relevance=keep_own(normalised(np.broadcast_to(scores, (count, count)), eligible), cohort),
        similarity=np.full((count, count), np.nan),
    )


def mean(sources: Sequence[Source]) -> Factors:
    """A = sum p_i A_i, B = sum p_i B_i: FedAvg of the factors, whose product is not the mean product."""
    a = sum(one.weight * one.factors.A.astype(np.float64) for one in sources)
    b = sum(one.weight * one.factors.B.astype(np.float64) for one in sources)
    return Factors(np.asarray(a, np.float32), np.asarray(b, np.float32))
