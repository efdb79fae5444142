"""Relevance by weighted averaging over all clients that share a module, and the steps that methods reuse."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Final

import numpy as np
from numpy.typing import NDArray

from coordinator.strategies import base
from coordinator.strategies.base import Cohort, Floats, Robust, Weighing
from coordinator.strategies.capabilities import Traits, Unfit
from coordinator.totals import JointValues, SegmentChange, Total
from schemas.messages.federations import FederationPlan
from schemas.secure_sum.segments import WEIGHT
from schemas.strategies.averages import Aggregate, AveragingOptions


def mean_of_all(cohort: Cohort, *, by_examples: bool = True, present_only: bool = False) -> Weighing:
    """w_ij = d^age_j n_j / the sum over all j that i shares a module with.

    Without `by_examples`, n_j = 1. With `present_only`, only updates of this round count. If no client of a
    base model counts, its clients and newcomers continue from the weights that they have in common.
    """
    count = len(cohort.clients)
    scores = log_decay(cohort) + (log_examples(cohort) if by_examples else 0.0)
    eligible = cohort.shares_any() & cohort.sources()[None, :]
    if present_only:
        eligible &= np.array([facts.age == 0 for facts in cohort.clients], bool)[None, :]
    counted = np.flatnonzero(eligible.any(axis=0))
    return Weighing(
        cohort=cohort,
        relevance=with_own_state(normalised(np.broadcast_to(scores, (count, count)), eligible), cohort),
        similarity=np.full((count, count), np.nan),
        absent=frozenset(
            facts.client
            for place, facts in enumerate(cohort.clients)
            if facts.age is not None and place not in counted
        ),
    )


TRIMMED: Final = 0.1
"""The share of clients whose values `trimmed_mean` leaves out at each end, rounded up."""


def aggregated(values: NDArray[np.float32], aggregate: Aggregate) -> NDArray[np.float32]:
    """Return one value per column of (clients, block): median or trimmed mean (Yin et al. 2018), (block,).

    Clients count equally. The trimmed mean leaves at least one client in.
    """
    if aggregate == "median":
        return np.asarray(np.median(values, axis=0), np.float32)
    cut = min(math.ceil(TRIMMED * len(values)), (len(values) - 1) // 2)
    remaining = np.sort(values, axis=0)[cut : len(values) - cut]
    return np.asarray(remaining.mean(axis=0, dtype=np.float64), np.float32)


@dataclass(frozen=True, slots=True)
class Averaging(base.Strategy):
    """One mean for all clients that share a (block, role)."""

    traits: ClassVar[Traits] = Traits(sums=True)

    options: AveragingOptions

    @property
    def robust(self) -> Robust | None:
        aggregate = self.options.aggregate
        return None if aggregate == "mean" else partial(aggregated, aggregate=aggregate)

    def unfit(self, plan: FederationPlan) -> Unfit | None:
        if self.options.aggregate != "mean" and plan.privacy.secure_sum is not None:
            fact = "mean with privacy.secure_sum: a sum shows no single value to compare"
            return Unfit("strategy.options.aggregate", fact)
        return None

    def weigh(self, cohort: Cohort) -> Weighing:
        return mean_of_all(cohort)

    def step(self, joint: JointValues, total: Total) -> Iterator[SegmentChange]:
        return summed_mean(joint, total)


def summed_mean(joint: JointValues, total: Total) -> Iterator[SegmentChange]:
    """Add the mean of what members learnt, sum w_i x_i / sum w_i, to each segment of the joint model.

    Raises:
        ValueError: the weights sum to nothing, which honest members' do not.
    """
    weight = total.number(WEIGHT)
    if weight <= 0:
        raise ValueError(f"the members' weights sum to {weight:.3g}: a member spoilt the sum")
    for segment in joint.segments:
        yield SegmentChange(segment, partial(_moved, joint, total, weight, segment))


def _moved(joint: JointValues, total: Total, weight: float, segment: str, begin: int, count: int) -> Floats:
    return joint.read(segment, begin, count) + total.values(segment, begin, count) / weight


def normalised(scores: Floats, eligible: NDArray[np.bool_]) -> Floats:
    """Convert log weights (N, N) to rows that sum to 1 over the eligible; a row without any is zero."""
    logits = np.where(eligible, scores, -np.inf)
    top = logits.max(axis=1, keepdims=True, initial=-np.inf)
    weights = np.exp(logits - np.where(np.isfinite(top), top, 0.0))
    total = weights.sum(axis=1, keepdims=True)
    rows: Floats = np.divide(weights, total, out=np.zeros_like(weights), where=total > 0)
    return rows


def with_own_state(relevance: Floats, cohort: Cohort) -> Floats:
    """Set the row of each client without sources to itself, unless it is a newcomer; in place."""
    has_no_source = relevance.sum(axis=1) == 0
    for i, facts in enumerate(cohort.clients):
        if has_no_source[i] and facts.age is not None:
            relevance[i, i] = 1.0
    return relevance


def log_decay(cohort: Cohort) -> Floats:
    """Return log d^age per client, (N,): the weight that an absent client still has."""
    return np.array([facts.age or 0 for facts in cohort.clients], np.float64) * math.log(cohort.decay)


def log_examples(cohort: Cohort) -> Floats:
    return np.array([math.log(max(1, facts.examples)) for facts in cohort.clients], np.float64)
