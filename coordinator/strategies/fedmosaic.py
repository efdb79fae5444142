"""FedMosaic (arXiv 2506.11024): each client is served the updates of clients that learn what it learns.

w_i = softmax_j(E_ij) over the eligible j, with the evidence E_ij = 0 for the client itself and otherwise

    (C_ij - c_i) / change_temperature     C the cosines of what clients change in their rounds, if compared
    (S_ij - 1) / temperature              S_ij = cos(s_i, s_j) / sqrt(rho_i rho_j) of gradient sketches

Sketches decide about newcomers, and whose updates are eligible at all; changes also tell tasks apart that
contradict each other. Differences from the published code (changes, reliabilities rho, a floor, decay,
newcomers): docs/decisions.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from coordinator.strategies import base
from coordinator.strategies.averaging import log_decay, log_examples, normalised, with_own_state
from coordinator.strategies.base import Cohort, Floats, Sketch, Weighing, equal_pairs
from coordinator.strategies.capabilities import Caps, Traits, Unfit
from schemas.messages.federations import FederationPlan
from schemas.strategies.fedmosaic import FedMosaicOptions

_SMALLEST_CENTRED = 3
"""With two clients the centred sketches always point away from each other."""

_LEAST_RELIABILITY = 0.25
"""A client that reports a noisy sketch at most doubles its similarity; its weight grows exponentially."""

_LARGEST_ERROR = 1 / 3
"""Two private sketches are not compared if noise alone would move their similarity by more than this."""

_MOST_OF_ONE = 0.2
"""The largest share of one peer, or one organisation, in the weights from which a client continues."""

_MOST_OF_ALL = 0.7
"""The largest share of all peers in them."""

_LEAST_LEVEL = 0.5
"""The least level of a client over that of the clients it listens to: with fewer or noisier examples its
cosines with clients of the same task are lower than theirs among themselves."""

_NO_DIVISION_BY_ZERO = 1e-9


@dataclass(frozen=True, slots=True)
class Strategy(base.Strategy):
    """Relevance-guided aggregation."""

    options: FedMosaicOptions

    @property
    def traits(self) -> Traits:
        per_client = "serves each client a mixture of its own, and N mixtures of N updates reveal them all"
        if self.options.distil is not None:
            per_client = "mixes the outputs of each client's model (strategy.options.distil)"
        return Traits(
            needs_sketch=True,
            compares_changes=self.options.evidence == "changes" and self.options.mix == "replace",
            per_client=per_client,
        )

    @property
    def caps(self) -> Caps | None:
        """The guard's caps in the state from which an established client continues; None without a guard."""
        if self.options.guard == "off":
            return None
        return Caps(peer=_MOST_OF_ONE, peers=_MOST_OF_ALL, strict=self.options.guard == "strict")

    def unfit(self, plan: FederationPlan) -> Unfit | None:
        """Reject error feedback if clients continue from their own adapters, which have the unsent values."""
        if self.options.mix == "replace" or not plan.wire.recipe.feeds_back:
            return None
        return Unfit(
            "wire.recipe",
            "a recipe without error feedback, such as int4_own_last: clients continue from their own "
            "adapters, which include the unsent values, so that feedback would count them twice",
        )

    def weigh(self, cohort: Cohort) -> Weighing:
        """w_ij = d^age_j n_j^e exp(E_ij) / the sum over the eligible j.

        A newcomer without a sketch gets the uniform mean of the clients it shares a module with.
        """
        options = self.options
        similarity = _similarity(cohort, centre=options.centre)
        reachable = self._reachable(cohort)
        eligible = self._eligible(reachable, similarity)
        scores = (np.nan_to_num(similarity) - 1) / options.temperature
        if cohort.changes is not None:
            scores = _by_changes(scores, cohort.changes, eligible, options.change_temperature)
        scores = scores + log_decay(cohort)
        if options.weight_by_examples:
            scores = scores + log_examples(cohort)
        relevance = normalised(scores, eligible)
        for i, facts in enumerate(cohort.clients):
            if facts.age is None and facts.sketch is None:
                relevance[i] = reachable[i] / max(1, np.count_nonzero(reachable[i]))
        return Weighing(cohort=cohort, relevance=with_own_state(relevance, cohort), similarity=similarity)

    def listens(self, weighing: Weighing) -> Floats:
        """w_ij = d^age_j exp(S_ij / temperature) / the sum over all peers j above the floor.

        Outputs are comparable between all base models, so neither `sources` nor packs matter. Without an
        established client's sketch there is nothing to compare, and it listens to nobody.
        """
        cohort, similarity = weighing.cohort, weighing.similarity
        peers = np.broadcast_to(cohort.sources()[None, :], similarity.shape) & ~np.eye(
            len(similarity), dtype=bool
        )
        scores = np.nan_to_num(similarity) / self.options.temperature + log_decay(cohort)
        return normalised(scores, self._eligible(peers, similarity))

    def _reachable(self, cohort: Cohort) -> NDArray[np.bool_]:
        """Return the pairs (i, j) for which i may be served the update of j at all, (N, N)."""
        reachable = cohort.shares_any() & cohort.sources()[None, :]
        if self.options.sources == "same_architecture":
            newcomer = np.array([facts.age is None for facts in cohort.clients], bool)
            reachable &= newcomer[:, None] | equal_pairs([facts.base_model for facts in cohort.clients])
        # A client's own state counts however old it is: without it, `replace` would discard it.
        itself = self.options.include_self or self.options.mix == "replace"
        np.fill_diagonal(reachable, [itself and facts.age is not None for facts in cohort.clients])
        return reachable

    def _eligible(self, reachable: NDArray[np.bool_], similarity: Floats) -> NDArray[np.bool_]:
        """Return the reachable pairs above the floor, at most `top_k` peers of each row (ties: lower id)."""
        eligible = reachable & ~np.isnan(similarity)
        if self.options.min_relevance is not None:
            eligible &= np.nan_to_num(similarity, nan=-np.inf) > self.options.min_relevance
        if self.options.top_k is not None:
            best = np.eye(len(eligible), dtype=bool)
            ranked = np.argsort(np.where(eligible & ~best, -similarity, np.inf), axis=1, kind="stable")
            np.put_along_axis(best, ranked[:, : self.options.top_k], True, axis=1)
            eligible &= best
        return eligible


def _by_changes(scores: Floats, changes: Floats, eligible: NDArray[np.bool_], temperature: float) -> Floats:
    """Replace the scores of pairs whose changes were compared by (C_ij - c_i) / temperature, (N, N).

    c_i is what the cosine with a second client of the same task would be, so that a client counts in its own
    row like one of them. It is the mean of C_i over the client's peers under their own softmax: the maximum
    would be biased by noise. It is at least half the median of those it listens to, itself included, so that
    a client whose task nobody shares counts more in its row than they do, and at least 0, so that two that
    pull apart stay apart.
    """
    scores = scores.copy()
    peers = eligible & ~np.isnan(changes) & ~np.eye(len(changes), dtype=bool)
    compared = peers.any(axis=1)
    if not compared.any():
        return scores
    cosines = np.nan_to_num(changes)
    level = np.sum(normalised(cosines / temperature, peers) * cosines, axis=1)  # (N,)
    # Weighted by the client's own softmax: other tasks may have larger cosines.
    with_level = np.where(np.eye(len(level), dtype=bool), level[:, None], cosines)
    shares = normalised(with_level / temperature, peers | np.diag(compared))
    typical = np.array([_weighted_median(level, row) for row in shares])
    level = np.maximum(level, np.maximum(_LEAST_LEVEL * typical, 0.0))
    by_changes = (cosines - level[:, None]) / temperature
    scores[peers] = by_changes[peers]
    np.fill_diagonal(scores, np.where(compared, 0.0, np.diag(scores)))
    return scores


def _weighted_median(values: Floats, weights: Floats) -> float:
    """Return the least value at which half of the weight is reached; 0 without weight."""
    order = np.argsort(values, kind="stable")
    reached = np.cumsum(weights[order])
    return float(values[order][np.searchsorted(reached, 0.5 * reached[-1])]) if reached[-1] > 0 else 0.0


def _similarity(cohort: Cohort, *, centre: bool) -> Floats:
    """Compare the sketches of each small model among themselves: S (N, N), NaN = not compared.

    Sampling noise, independent between clients, shortens the cosine of two samples of one task to
    sqrt(rho_i rho_j), which depends on their numbers of examples; divided by it, the cosine is about 1 for
    one task at any size (Spearman 1904, "correction for attenuation"), so that one floor fits all.
    """
    clients = cohort.clients
    similarity = np.full((len(clients), len(clients)), np.nan)
    known_sketches: dict[int, Sketch] = {}
    groups: dict[tuple[str, int], list[int]] = {}
    for i, facts in enumerate(clients):
        if facts.sketch is not None:
            known_sketches[i] = facts.sketch
            groups.setdefault((facts.sketch_model, facts.sketch.vector.size), []).append(i)
    for members in groups.values():
        sketches = np.stack([known_sketches[i].vector.astype(np.float64) for i in members])  # (n, dim)
        rho = np.array([known_sketches[i].reliability for i in members])  # (n,)
        # Clients that left long ago are compared, but do not move the mean.
        present = np.array([clients[i].is_source or clients[i].age is None for i in members])
        private = np.array([known_sketches[i].epsilon is not None for i in members])
        # From the sketches as sent: centring does not reduce their noise.
        unclear = _unclear(rho, sketches.shape[1]) & (private[:, None] | private[None, :])
        if centre and np.count_nonzero(present) >= _SMALLEST_CENTRED:
            sketches, rho = sketches - sketches[present].mean(axis=0), np.ones(len(members))
        compared = _corrected(_cosines(sketches), rho)
        compared[unclear] = np.nan
        similarity[np.ix_(members, members)] = compared
    return similarity


def _unclear(rho: Floats, dim: int) -> NDArray[np.bool_]:
    """Return the pairs whose similarity is mostly noise, (N, N), by its error in the corrected cosine.

    The error is sqrt((1 - rho_i rho_j) / (dim rho_i rho_j)): the noise of unrelated sketches has a cosine of
    about 1/sqrt(dim), and the correction enlarges it. The diagonal is clear.
    """
    shared = rho[:, None] * rho[None, :]
    unclear: NDArray[np.bool_] = np.sqrt((1 - shared) / (dim * shared)) > _LARGEST_ERROR
    np.fill_diagonal(unclear, False)
    return unclear


def _corrected(cosines: Floats, rho: Floats) -> Floats:
    """S_ij = cos_ij / sqrt(rho_i rho_j), at most 1 in size."""
    rho = np.maximum(rho, _LEAST_RELIABILITY)
    corrected: Floats = np.clip(cosines / np.sqrt(rho[:, None] * rho[None, :]), -1, 1)
    return corrected


def _cosines(vectors: Floats) -> Floats:
    """cos(a, b) = a.b / (|a| |b| + 1e-9) for all pairs of rows."""
    norms = np.linalg.norm(vectors, axis=1)
    cosines: Floats = (vectors @ vectors.T) / (norms[:, None] * norms[None, :] + _NO_DIVISION_BY_ZERO)
    return cosines
