"""Decide whether a mixture has enough voices to be served; otherwise its client keeps its own update. Pure.

A mixture has k voices if no k - 1 peers hold more than 1 - 1/(2k) of the weight of all peers: the dominance
rule of statistical disclosure control (Hundepool et al. 2012, section 4.2.2; docs/decisions/0032).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from coordinator.aggregation.guard import GuardReport, shares_served
from coordinator.strategies.base import Cohort, Floats, Kind, Module, WeightReduction, Weights

_ROUNDING = 1e-9


def has_voices(shares: Floats, least: int) -> bool:
    """Whether peers with these shares (n,), of any sum, have `least` voices; True without any share.

    Shares of .999 and two of .0005 are one voice. k equal shares are k voices, and so are k moderately
    unequal ones, which 1 / sum w^2 would count as fewer.
    """
    if least <= 1 or not shares.any():
        return True
    dominant = np.sort(shares)[::-1][: least - 1].sum()
    # Float sums of equal shares may exceed the bound by a rounding error.
    return bool(dominant <= (1 - 1 / (2 * least)) * shares.sum() * (1 + _ROUNDING))


def rows_with_voices(weights: Floats, least: int) -> NDArray[np.bool_]:
    """Whether each row of W (N, N) has `least` voices beside the receiver's own, (N,)."""
    peer_weights = np.where(np.eye(len(weights), dtype=bool), 0.0, weights)
    return np.array([has_voices(row, least) for row in peer_weights], bool)


def fall_back_to_own(weights: Floats, enough: NDArray[np.bool_], cohort: Cohort) -> Floats:
    """Replace the rows of W (N, N) that are not `enough` (N,): by the own state, for newcomers by zeros."""
    established = np.array([facts.age is not None for facts in cohort.clients], bool)
    diagonal = np.diag(established.astype(np.float64))
    return np.where(enough[:, None], weights, diagonal)


@dataclass(frozen=True, slots=True)
class VoicedWeights:
    """Weights of mixtures with enough voices; the remaining clients keep their own.

    Attributes:
        weights: per kind of module (N, N).
        enough: per kind (N,), whether the row has enough voices and was not replaced.
    """

    cohort: Cohort
    weights: Mapping[Kind, Floats]
    enough: Mapping[Kind, NDArray[np.bool_]]

    def of_module(self, module: Module) -> Floats:
        return self.weights[self.cohort.kind(module)]

    @property
    def alone(self) -> frozenset[str]:
        all_kinds = np.all(list(self.enough.values()), axis=0) if self.enough else []
        return frozenset(
            facts.client for facts, ok in zip(self.cohort.clients, all_kinds, strict=False) if not ok
        )

    def report(self, guard: GuardReport | None, before: Weights) -> GuardReport:
        """Return the guard's report with the served weights and the reductions for too few voices."""
        clients = len(self.cohort.clients)
        empty = np.zeros((clients, clients), np.uint8)
        reductions = guard.reductions.copy() if guard is not None else empty
        for kind, module in self.cohort.kinds().items():
            peer_weights = before.of_module(module) > 0
            np.fill_diagonal(peer_weights, False)
            reductions |= np.where(peer_weights & ~self.enough[kind][:, None], WeightReduction.FEW, 0).astype(
                np.uint8
            )
        agreement = guard.agreement if guard is not None else np.full((clients, clients), np.nan)
        return GuardReport(shares_served(self.cohort, self.weights), agreement, reductions)


def require_voices(weights: Weights, least: int, *, common: bool) -> VoicedWeights:
    """Replace every row of W with fewer than `least` voices.

    With `common` all clients of one base model and layout are served the same: if one of them lacks voices
    in one module, all of them keep their own.
    """
    cohort = weights.cohort
    rows_before = {kind: weights.of_module(module) for kind, module in cohort.kinds().items()}
    enough = {kind: rows_with_voices(rows, least) for kind, rows in rows_before.items()}
    if common and enough:
        enough = dict.fromkeys(enough, _group_has_voices(np.all(list(enough.values()), axis=0), cohort))
    rows = {kind: fall_back_to_own(rows_before[kind], enough[kind], cohort) for kind in rows_before}
    return VoicedWeights(cohort, rows, enough)


def _group_has_voices(enough: NDArray[np.bool_], cohort: Cohort) -> NDArray[np.bool_]:
    groups = [(facts.base_model, facts.modules) for facts in cohort.clients]
    lacking = [group for group, ok in zip(groups, enough, strict=True) if not ok]
    return np.array([group not in lacking for group in groups], bool)
