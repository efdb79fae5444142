"""The means that several methods start from: of all who share something, of their A and B, and their weights.

No strategy by itself.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from coordinator.strategies.base import Cohort, Floats, Weighing
from coordinator.strategies.capabilities import Source
from schemas.maths.factors import Factors


def mean_of_all(cohort: Cohort, *, by_examples: bool = True, present_only: bool = False) -> Weighing:
    """w_ij = d^age_j n_j / the sum over all j that i shares something with.

    n_j = 1 without `by_examples`; with `present_only` whoever sent nothing this round does not count. Where
    nobody of a base model counts, its clients and its newcomers go on from what they have in common.
    """
    count = len(cohort.clients)
    scores = fading(cohort) + (log_examples(cohort) if by_examples else 0.0)
    eligible = cohort.shares_any() & cohort.sources()[None, :]
    if present_only:
        eligible &= np.array([facts.age == 0 for facts in cohort.clients], bool)[None, :]
    counts = np.flatnonzero(eligible.any(axis=0))
    return Weighing(
        cohort=cohort,
        relevance=keep_own(normalised(np.broadcast_to(scores, (count, count)), eligible), cohort),
        similarity=np.full((count, count), np.nan),
        absent=frozenset(
            facts.client
            for place, facts in enumerate(cohort.clients)
            if facts.age is not None and place not in counts
        ),
    )


def mean(sources: Sequence[Source]) -> Factors:
    """A = sum p_i A_i, B = sum p_i B_i: FedAvg of the factors, whose product is not the mean product."""
    a = sum(one.weight * one.factors.A.astype(np.float64) for one in sources)
    b = sum(one.weight * one.factors.B.astype(np.float64) for one in sources)
    return Factors(np.asarray(a, np.float32), np.asarray(b, np.float32))


def normalised(scores: Floats, eligible: NDArray[np.bool_]) -> Floats:
    """Turn log weights (N, N) into rows that sum to 1 over the eligible; a row without any is zero."""
    logits = np.where(eligible, scores, -np.inf)
    top = logits.max(axis=1, keepdims=True, initial=-np.inf)
    weights = np.exp(logits - np.where(np.isfinite(top), top, 0.0))
    total = weights.sum(axis=1, keepdims=True)
    rows: Floats = np.divide(weights, total, out=np.zeros_like(weights), where=total > 0)
    return rows


def keep_own(relevance: Floats, cohort: Cohort) -> Floats:
    """Let a client without any source listen to itself, if it has something of its own."""
    alone = relevance.sum(axis=1) == 0
    for i, facts in enumerate(cohort.clients):
        if alone[i] and facts.age is not None:
            relevance[i, i] = 1.0
    return relevance


def fading(cohort: Cohort) -> Floats:
    """Give the log of d^age per client, (N,): how much an absent client still counts."""
    return np.array([facts.age or 0 for facts in cohort.clients], np.float64) * math.log(cohort.decay)


def log_examples(cohort: Cohort) -> Floats:
    """Give the log of the number of examples per client, (N,)."""
    return np.array([math.log(max(1, facts.examples)) for facts in cohort.clients], np.float64)
