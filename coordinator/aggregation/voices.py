"""Decide whether a mixture has enough voices to be served, and keep whoever it is for to itself otherwise.

Pure: no byte. A mixture has k voices if no k - 1 members hold more than 1 - 1/(2k) of what comes from others:
what is left of it to the rest is half of an equal share at least. That is the dominance rule of statistical
disclosure control (Hundepool et al. 2012, section 4.2.2). One member with .999 and two with .0005 are one
voice, k members of equal weight are k, and k members whose data differ in size still are, which a count by
1 / sum w^2 would not say of any unequal weights. docs/decisions/0032 says why, and what it does not cover.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from coordinator.aggregation.guard import Told, shares_served
from coordinator.aggregation.mixing import Weights
from coordinator.strategies.base import Cohort, Floats, Held, Kind, Module

_ROUNDING = 1e-9


def has_voices(shares: Floats, least: int) -> bool:
    """Whether `least` members speak in what comes from others, by their shares (n,), whatever these sum to.

    Where nothing comes from others, there is nothing to hold back.
    """
    if least <= 1 or not shares.any():
        return True
    dominant = np.sort(shares)[::-1][: least - 1].sum()
    return bool(dominant <= (1 - 1 / (2 * least)) * shares.sum() * (1 + _ROUNDING))


def rows_with_voices(weights: Floats, least: int) -> NDArray[np.bool_]:
    """Whether each row of W (N, N) has `least` voices beside the receiver's own, (N,)."""
    others = np.where(np.eye(len(weights), dtype=bool), 0.0, weights)
    return np.array([has_voices(row, least) for row in others], bool)


def kept_own(weights: Floats, enough: NDArray[np.bool_], cohort: Cohort) -> Floats:
    """Replace the rows of W (N, N) that are not `enough` (N,): own state, nothing for newcomers."""
    established = np.array([facts.age is not None for facts in cohort.clients], bool)
    own = np.diag(established.astype(np.float64))
    return np.where(enough[:, None], weights, own)


@dataclass(frozen=True, slots=True)
class Voiced:
    """What each client is served: a mixture with enough voices, or its own.

    Attributes:
        weights: per kind of module (N, N).
        enough: per kind (N,), whether the row is the mixture that the strategy and the guard asked for.
    """

    cohort: Cohort
    weights: Mapping[Kind, Floats]
    enough: Mapping[Kind, NDArray[np.bool_]]

    def of_module(self, module: Module) -> Floats:
        """Return the weights for one module, (N, N)."""
        return self.weights[self.cohort.kind(module)]

    @property
    def alone(self) -> frozenset[str]:
        """The clients that keep some module to themselves because too few would speak in it."""
        every = np.all(list(self.enough.values()), axis=0) if self.enough else []
        return frozenset(
            facts.client for facts, ok in zip(self.cohort.clients, every, strict=False) if not ok
        )

    def told(self, guard: Told | None, before: Weights) -> Told:
        """Return what people are shown: what is served, and whom too few voices kept from being heard."""
        clients = len(self.cohort.clients)
        held = guard.held.copy() if guard is not None else np.zeros((clients, clients), np.uint8)
        for kind, module in self.cohort.kinds().items():
            others = before.of_module(module) > 0
            np.fill_diagonal(others, False)
            held |= np.where(others & ~self.enough[kind][:, None], Held.FEW, 0).astype(np.uint8)
        agreement = guard.agreement if guard is not None else np.full((clients, clients), np.nan)
        return Told(shares_served(self.cohort, self.weights), agreement, held)


def voiced(weights: Weights, least: int, *, common: bool) -> Voiced:
    """Hold every row of W to `least` voices.

    With `common` all clients of one base model and layout are served the same or nothing: one of them that
    lacks voices in one module keeps all of them from being served.
    """
    cohort = weights.cohort
    rows_before = {kind: weights.of_module(module) for kind, module in cohort.kinds().items()}
    enough = {kind: rows_with_voices(rows, least) for kind, rows in rows_before.items()}
    if common and enough:
        enough = dict.fromkeys(enough, _by_kin(np.all(list(enough.values()), axis=0), cohort))
    return Voiced(
        cohort, {kind: kept_own(rows_before[kind], enough[kind], cohort) for kind in rows_before}, enough
    )


def _by_kin(enough: NDArray[np.bool_], cohort: Cohort) -> NDArray[np.bool_]:
    """Whether all clients of each one's base model and layout have enough voices, (N,)."""
    groups = [(facts.base_model, facts.modules) for facts in cohort.clients]
    lacking = [group for group, ok in zip(groups, enough, strict=True) if not ok]
    return np.array([group not in lacking for group in groups], bool)
