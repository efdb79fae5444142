"""Limit the influence of peers on each client to a share of the norm of its own update. Pure.

The receiver's own update is the root of trust. d_j is client j's state minus the common start
(schemas/maths/start); norms and cosines are computed per kind of module. Client i with weights w_i is served

    G_i = sum over j != i of a_ij c_ij u_j + the remainder to 1 of u_i
    c_ij = min(1, |d_i| / |d_j|)                        peers are cut to its own length
    a_ij ~ w_ij / votes_ij where cos(d_i, d_j) > 0.05   only agreeing peers count; copies share one vote
    a_ij <= cap, their sum over an organisation and over copies <= cap, over all <= peers

so that f clients contribute at most min(f cap, peers) |d_i|, whatever they send. Weight that the caps
cut off goes to i itself, and `cap` is at least an equal share of `peers` for each voice (`_voices`). A
strict guard takes cos(d_i, d_j) as a factor, and its cap holds for any number of peers. A newcomer has no
d_i: `_newcomer`. Limits of this guard: docs/explanation/poisoning.md.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod

import numpy as np
from numpy.typing import NDArray

from coordinator.strategies.base import Cohort, Floats, Kind, Module, Weighing, WeightReduction
from coordinator.strategies.capabilities import Caps

# The cosine, as seen from the receiver, from which two updates are copies.
_COPIES = 0.95

# The cosine from which a peer agrees: unrelated updates of some thousand values stay below. Silos of one
# task have .1 and more with each other after a first round of 6 examples, .18 to .6 after one of 12.
_AGREES = 0.05

# Relative: weights that differ by less are taken as equal.
_ROUNDING = 1e-9
_HALVINGS = 40

# The most by which redistribution multiplies a weight.
_MOST_FILLING = 2.0**10

_NO_DIVISION_BY_ZERO = 1e-300


@dataclass(frozen=True, slots=True)
class GuardReport:
    """The effect of the guard on each client's weights, over all modules, as shown to users.

    Attributes:
        served: (N, N), the weights averaged over the values that i has.
        agreement: (N, N), cos(d_i, d_j) over the modules that both share; NaN = not compared.
        reductions: (N, N), `WeightReduction` in any kind of module.
    """

    served: Floats
    agreement: Floats
    reductions: NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class GuardedWeights:
    """The weights that clients are served after the guard.

    Attributes:
        weights: per kind of module (N, N): G = weights @ U; rows of clients that have the module sum to 1.
        products: per kind (N, N), d_i . d_j.
        reductions: per kind (N, N), `WeightReduction`.
        caps: per kind (N,), the cap on each peer of i; 1 for newcomers.
    """

    cohort: Cohort
    weights: Mapping[Kind, Floats]
    products: Mapping[Kind, Floats]
    reductions: Mapping[Kind, NDArray[np.uint8]]
    caps: Mapping[Kind, Floats]

    def of_module(self, module: Module) -> Floats:
        return self.weights[self.cohort.kind(module)]

    def report(self) -> GuardReport:
        cohort = self.cohort
        served = shares_served(cohort, self.weights)
        inner, squares_i, squares_j = (np.zeros_like(served) for _ in range(3))
        for kind, module in cohort.kinds().items():
            shared = cohort.shares(module)
            inner += np.where(shared, self.products[kind], 0.0)
            squares_i += np.where(shared, np.diag(self.products[kind])[:, None], 0.0)
            squares_j += np.where(shared, np.diag(self.products[kind])[None, :], 0.0)
        scale = np.sqrt(squares_i * squares_j)
        return GuardReport(
            served=served,
            agreement=np.divide(inner, scale, out=np.full_like(inner, np.nan), where=scale > 0),
            reductions=np.bitwise_or.reduce(list(self.reductions.values())),
        )


def shares_served(cohort: Cohort, weights: Mapping[Kind, Floats]) -> Floats:
    """Average the weights of all kinds over the values that each client has, (N, N)."""
    sizes = {kind: np.zeros(len(cohort.clients)) for kind in weights}
    for i, facts in enumerate(cohort.clients):
        for module, form in facts.modules.items():
            sizes[cohort.kind(module)][i] += sum(prod(shape) for _, shape in form)
    served = np.sum([sizes[kind][:, None] * rows for kind, rows in weights.items()], axis=0)
    shares: Floats = served / np.maximum(1.0, np.sum(list(sizes.values()), axis=0))[:, None]
    return shares


def guard_weights(
    weighing: Weighing,
    products: Mapping[Kind, Floats],
    caps: Caps,
    between: Callable[[], None] = lambda: None,
) -> GuardedWeights:
    """Guard every client, O(N^3) per kind.

    Args:
        products: per kind (N, N), d_i . d_j over the tensors of that kind; kinds without peers may be absent.
        between: called after every client of every kind.
    """
    cohort = weighing.cohort
    weights: dict[Kind, Floats] = {}
    kind_products: dict[Kind, Floats] = {}
    reductions: dict[Kind, NDArray[np.uint8]] = {}
    applied: dict[Kind, Floats] = {}
    for kind, module in cohort.kinds().items():
        relevance = weighing.of_module(module)
        kind_products[kind] = products.get(kind, np.zeros_like(relevance))
        weights[kind], reductions[kind], applied[kind] = _guarded(
            relevance, kind_products[kind], cohort, caps, between
        )
    return GuardedWeights(cohort, weights, kind_products, reductions, applied)


def _guarded(
    relevance: Floats, kind_products: Floats, cohort: Cohort, caps: Caps, between: Callable[[], None]
) -> tuple[Floats, NDArray[np.uint8], Floats]:
    weights, reductions = np.zeros_like(relevance), np.zeros(relevance.shape, np.uint8)
    applied = np.array([1.0 if facts.age is None else caps.peer for facts in cohort.clients])
    organisations = _organisations(cohort)
    for i, facts in enumerate(cohort.clients):
        row = np.where(np.arange(len(relevance)) == i, 0.0, relevance[i])
        peers = np.flatnonzero(row)  # (n,)
        if not peers.size:
            weights[i] = relevance[i]
            continue
        places = np.append(peers, i)
        products, peer_weights = kind_products[np.ix_(places, places)], row[peers]
        # Peers of the receiver's own organisation are not limited together: they get -1.
        organisation_ids = np.array(
            [organisations[j] if organisations[j] != organisations[i] else -1 for j in peers]
        )
        if facts.age is None:
            allowed, reasons = _newcomer(peer_weights, products[:-1, :-1], organisation_ids, caps)
        else:
            allowed, reasons, applied[i] = _established(peer_weights, products, organisation_ids, caps)
            weights[i, i] = max(0.0, 1.0 - allowed.sum())
        weights[i, peers], reductions[i, peers] = allowed, reasons
        between()
    return weights, reductions, applied


def _established(
    peer_weights: Floats, products: Floats, organisation_ids: NDArray[np.int_], caps: Caps
) -> tuple[Floats, NDArray[np.uint8], float]:
    """Guard a client with an update of its own, the last place of `products` (n + 1, n + 1)."""
    lengths = np.sqrt(np.diag(products))
    clip = _clip(lengths, lengths[-1])  # (n + 1,)
    cosine = np.nan_to_num(_cosines(products)[-1, :-1])
    agrees = cosine > (0.0 if caps.strict else _AGREES)
    # All peers oppose: the receiver keeps its own update.
    if not agrees.any():
        reasons = WeightReduction.OPPOSED | WeightReduction.LARGE * (clip[:-1] < 1)
        return np.zeros_like(peer_weights), reasons.astype(np.uint8), caps.peer
    copies = _near_copies(products, lengths[-1], np.eye(len(lengths))[-1])[:-1, :-1]
    # Copies and clients of one organisation share one cap.
    same_voice = copies | _same_organisation(organisation_ids)
    sets = same_voice.astype(np.float64)
    voices = np.where(agrees, peer_weights / _count(copies), 0.0)
    if caps.strict:
        target, cap = voices * cosine, caps.peer
    else:
        # The weight of peers that disagree goes to the others and to the receiver, in proportion to theirs.
        own_weight = max(0.0, 1.0 - peer_weights.sum())
        target = voices / (voices.sum() + own_weight)
        cap = max(caps.peer, caps.peers / _voices(voices[agrees], same_voice[np.ix_(agrees, agrees)]))
    # What the caps cut off stays with the receiver: more of it for other peers would go to other tasks.
    allowed = _capped(target, sets, cap)
    # The last cap bounds all peers together, however many there are.
    allowed = allowed * min(1.0, caps.peers / max(allowed.sum(), _NO_DIVISION_BY_ZERO))
    reasons = (
        WeightReduction.LARGE * (clip[:-1] < 1)
        | WeightReduction.OPPOSED * ~agrees
        | WeightReduction.COPIES * (_count(copies) > 1)
        | WeightReduction.CAPPED * (allowed < target * (1 - _ROUNDING))
    )
    return allowed * clip[:-1], reasons.astype(np.uint8), cap


def _newcomer(
    peer_weights: Floats, products: Floats, organisation_ids: NDArray[np.int_], caps: Caps
) -> tuple[Floats, NDArray[np.uint8]]:
    """Guard a newcomer, which has no update to compare with those of its peers; the row sums to 1.

    Updates are cut to the weighted median of the peers' lengths. Copies share one voice, and so do the
    clients of an organisation. A voice gets at most `caps.peer`, or an equal share if that is more: the
    newcomer's sketch may be a guess. Weight that is cut off goes to the remaining peers; see `_filled`.
    """
    lengths = np.sqrt(np.diag(products))
    clip = _clip(lengths, _median(lengths, peer_weights))
    copies = _near_copies(products, float(lengths.mean()), peer_weights / peer_weights.sum())
    colleagues = _same_organisation(organisation_ids)
    same_voice = copies | colleagues
    target = peer_weights / _count(same_voice)
    target = target / target.sum()
    cap = max(caps.peer, 1.0 / float((1.0 / _count(same_voice)).sum()))
    allowed = _filled(target, same_voice.astype(np.float64), cap)
    allowed = allowed / allowed.sum()
    weights, uncut = allowed * clip, clip == 1
    # The weight that the cut takes from long updates goes to the other updates: the row sums to 1 again.
    weights[uncut] *= (1.0 - weights[~uncut].sum()) / weights[uncut].sum()
    capped = (_count(colleagues) > 1) | (allowed < target * (1 - _ROUNDING))
    reasons = (
        WeightReduction.LARGE * (clip < 1)
        | WeightReduction.COPIES * (_count(copies) > 1)
        | WeightReduction.CAPPED * capped
    )
    return weights, reasons.astype(np.uint8)


def _median(lengths: Floats, w: Floats) -> float:
    """Return the least length that at least half of the weight does not exceed."""
    order = np.argsort(lengths, kind="stable")
    reached = np.cumsum(w[order])
    return float(lengths[order][np.searchsorted(reached, 0.5 * reached[-1])])


def _clip(lengths: Floats, most: float) -> Floats:
    """c_j = min(1, most / |d_j|)."""
    shorter: Floats = np.divide(most, lengths, out=np.ones_like(lengths), where=lengths > most)
    return shorter


def _near_copies(products: Floats, length: float, origin_weights: Floats) -> NDArray[np.bool_]:
    """Return the pairs of n updates that are nearly equal after scaling to one length, (n, n).

    `products` (n, n) are their inner products, `length` the common length. Directions are compared relative
    to the mean of the updates under `origin_weights` (n,): for an established client, its own update alone.
    """
    lengths = np.sqrt(np.diag(products))
    scale = np.divide(length, lengths, out=np.zeros_like(lengths), where=lengths > 0)
    products = products * scale[:, None] * scale[None, :]
    # Relative to the common start, averaging makes all updates nearly equal after some rounds. Only relative
    # to the mean do independent updates differ, by their latest training, and copies not.
    origin_products = products @ origin_weights
    centred = (
        products - origin_products[:, None] - origin_products[None, :] + origin_weights @ origin_products
    )
    copies = _cosines(centred) > _COPIES
    np.fill_diagonal(copies, True)
    return copies


def _same_organisation(organisation_ids: NDArray[np.int_]) -> NDArray[np.bool_]:
    """Return the pairs of one organisation that is not the receiver's (-1), (n, n); True on the diagonal."""
    equal: NDArray[np.bool_] = (organisation_ids[:, None] == organisation_ids[None, :]) & (
        organisation_ids >= 0
    )[:, None]
    np.fill_diagonal(equal, True)
    return equal


def _count(pairs: NDArray[np.bool_]) -> Floats:
    return np.asarray(np.count_nonzero(pairs, axis=1), np.float64)


def _voices(weights: Floats, same_voice: NDArray[np.bool_]) -> float:
    """Return the number of voices among n accepted peers: 1 / the sum of their squared shares.

    Peers of other tasks have almost no weight, and so do not add to a small group's voices. There are at
    least two voices if two independent peers agree: otherwise a peer that imitates the receiver's task could
    take the weight of the others, and with it their caps.
    """
    shares = weights / max(weights.sum(), _NO_DIVISION_BY_ZERO)
    independent = float((1.0 / _count(same_voice)).sum())
    effective = 1.0 / max(float(shares @ same_voice @ shares), _NO_DIVISION_BY_ZERO)
    return min(independent, max(2.0, effective))


def _capped(target: Floats, sets: Floats, cap: float) -> Floats:
    """Limit each weight to the cap, then the sum of each set (a row of `sets`, (n, n)) to the cap; (n,)."""
    allowed = np.minimum(target, cap)
    totals = sets @ allowed
    limited: Floats = allowed * np.minimum(1.0, cap / np.maximum(totals, _NO_DIVISION_BY_ZERO))
    return limited


def _filled(target: Floats, sets: Floats, cap: float) -> Floats:
    """Limit to the caps, and distribute the weight that is cut off to clients below their caps; (n,)."""
    total = target.sum() * (1 - _ROUNDING)
    # All weights are multiplied by one scale before the cut. The sum grows with the scale, so that
    # bisection finds the scale at which nothing is lost.
    low, high = 1.0, 1.0
    while _capped(high * target, sets, cap).sum() < total and high < _MOST_FILLING:
        low, high = high, 2 * high
    for _ in range(_HALVINGS if high > 1.0 else 0):
        middle = (low + high) / 2
        reaches_total = _capped(middle * target, sets, cap).sum() >= total
        low, high = (low, middle) if reaches_total else (middle, high)
    return _capped(low * target, sets, cap)


def _cosines(inner: Floats) -> Floats:
    """cos(a, b) = a.b / (|a| |b|); NaN where one is zero."""
    lengths = np.sqrt(np.maximum(np.diag(inner), 0.0))
    scale = lengths[:, None] * lengths[None, :]
    cosines: Floats = np.divide(inner, scale, out=np.full_like(inner, np.nan), where=scale > 0)
    return cosines


def _organisations(cohort: Cohort) -> list[int]:
    numbers: dict[object, int] = {}
    keys = [facts.organisation or (facts.client,) for facts in cohort.clients]
    return [numbers.setdefault(key, len(numbers)) for key in keys]
