"""The plain mean that several methods start from: everybody listens to all who share something, equally.

No strategy by itself.
"""

from __future__ import annotations

import numpy as np

from coordinator.strategies.base import Cohort, Weighing, fading, keep_own, log_examples, normalised


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
