"""Hold back what others send: nobody is moved by more than a share of its own norm. Pure: no byte.

The receiver's own update is the root of trust. d_j is client j's state minus the start that all have in
common (schemas/maths/start); norms and cosines are those of one kind of module at a time, so that nothing
hides behind another kind's larger numbers. Client i with the weights w_i is served

    G_i = sum over j != i of a_ij c_ij u_j + what is left to 1 of u_i
    c_ij = min(1, length |d_i| / |d_j|)                 nobody is much longer than oneself
    a_ij ~ w_ij / votes_ij where cos(d_i, d_j) > 0.05   who does not agree is not heard; copies have one vote
    a_ij <= cap, their sum over an organisation and over copies <= cap, over all <= others

so that f clients contribute at most min(f cap, others) length |d_i|, whatever they send. What some lose goes
to others who are heard, up to their caps, and `cap` is at least an equal share of `others`: averaging with a
single peer is not cut short. A strict guard takes cos(d_i, d_j) as a factor, gives all that is cut off to i,
and its cap holds however few are heard. A newcomer has no d_i: it is guarded as `_newcomer` says.
docs/poisoning.md tells what this holds back and what not.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod

import numpy as np
from numpy.typing import NDArray

from coordinator.strategies.base import Cohort, Floats, Held, Kind, Module, Weighing
from coordinator.strategies.capabilities import Caps

_COPIES = 0.95
"""The cosine from which two updates, as seen from the receiver, are one."""

_AGREES = 0.05
"""The cosine from which a client is heard: unrelated updates of some thousand values stay below. Silos of one
task have .1 and more with each other after a first round of 6 examples, .18 to .6 after one of 12."""

_ROUNDING = 1e-9
_HALVINGS = 40

_MOST_FILLING = 2.0**10
"""How much more than it asks for anybody is given of what others lose."""

_NO_DIVISION_BY_ZERO = 1e-300


@dataclass(frozen=True, slots=True)
class GuardReport:
    """What the guard did to each client's weights, over all modules together; what people are shown.

    Attributes:
        served: (N, N), how much of whom, averaged over the values that i has.
        agreement: (N, N), cos(d_i, d_j) over what both share; NaN = not compared.
        held: (N, N), `Held`, by any kind of module.
    """

    served: Floats
    agreement: Floats
    held: NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class Guarded:
    """What each client is served.

    Attributes:
        weights: per kind of module (N, N): G = weights @ U; rows of clients that have the module sum to 1.
        products: per kind (N, N), d_i . d_j.
        held: per kind (N, N), `Held`.
        caps: per kind (N,), the cap on each other client that held for i; 1 for newcomers.
    """

    cohort: Cohort
    weights: Mapping[Kind, Floats]
    products: Mapping[Kind, Floats]
    held: Mapping[Kind, NDArray[np.uint8]]
    caps: Mapping[Kind, Floats]

    def of_module(self, module: Module) -> Floats:
        """Give the weights for one module, (N, N)."""
        return self.weights[self.cohort.kind(module)]

    def told(self) -> GuardReport:
        """Sum up over all kinds."""
        cohort = self.cohort
        served = shares_served(cohort, self.weights)
        inner, own, theirs = (np.zeros_like(served) for _ in range(3))
        for kind, module in cohort.kinds().items():
            shared = cohort.shares(module)
            inner += np.where(shared, self.products[kind], 0.0)
            own += np.where(shared, np.diag(self.products[kind])[:, None], 0.0)
            theirs += np.where(shared, np.diag(self.products[kind])[None, :], 0.0)
        scale = np.sqrt(own * theirs)
        return GuardReport(
            served=served,
            agreement=np.divide(inner, scale, out=np.full_like(inner, np.nan), where=scale > 0),
            held=np.bitwise_or.reduce(list(self.held.values())),
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


def guarded(
    weighing: Weighing,
    products: Mapping[Kind, Floats],
    caps: Caps,
    between: Callable[[], None] = lambda: None,
) -> Guarded:
    """Guard every client, O(N^3) per kind.

    Args:
        products: per kind (N, N), d_i . d_j over the tensors of that kind; a kind in which nobody listens to
            anybody else may be absent.
        between: called after every client of every kind, since many clients take a while.
    """
    cohort = weighing.cohort
    weights: dict[Kind, Floats] = {}
    known: dict[Kind, Floats] = {}
    held: dict[Kind, NDArray[np.uint8]] = {}
    applied: dict[Kind, Floats] = {}
    for kind, module in cohort.kinds().items():
        asked = weighing.of_module(module)
        known[kind] = products.get(kind, np.zeros_like(asked))
        weights[kind], held[kind], applied[kind] = _guarded(asked, known[kind], cohort, caps, between)
    return Guarded(cohort, weights, known, held, applied)


def _guarded(
    asked: Floats, product: Floats, cohort: Cohort, caps: Caps, between: Callable[[], None]
) -> tuple[Floats, NDArray[np.uint8], Floats]:
    weights, held = np.zeros_like(asked), np.zeros(asked.shape, np.uint8)
    applied = np.array([1.0 if facts.age is None else caps.other for facts in cohort.clients])
    organisations = _organisations(cohort)
    for i, facts in enumerate(cohort.clients):
        row = np.where(np.arange(len(asked)) == i, 0.0, asked[i])
        heard = np.flatnonzero(row)  # (n,)
        if not heard.size:
            weights[i] = asked[i]
            continue
        places = np.append(heard, i)
        inner, w = product[np.ix_(places, places)], row[heard]
        foreign = np.array([organisations[j] if organisations[j] != organisations[i] else -1 for j in heard])
        if facts.age is None:
            given, why = _newcomer(w, inner[:-1, :-1], foreign, caps)
        else:
            given, why, applied[i] = _established(w, inner, foreign, caps)
            weights[i, i] = max(0.0, 1.0 - given.sum())
        weights[i, heard], held[i, heard] = given, why
        between()
    return weights, held, applied


def _established(
    w: Floats, inner: Floats, foreign: NDArray[np.int_], caps: Caps
) -> tuple[Floats, NDArray[np.uint8], float]:
    """Guard a client that has an update of its own, the last place of `inner` (n + 1, n + 1)."""
    lengths = np.sqrt(np.diag(inner))
    clip = _clip(lengths, caps.length * lengths[-1])  # (n + 1,)
    cosine = np.nan_to_num(_cosines(inner)[-1, :-1])
    heard = cosine > (0.0 if caps.strict else _AGREES)
    if not heard.any():
        why = Held.OPPOSED | Held.LARGE * (clip[:-1] < 1)
        return np.zeros_like(w), why.astype(np.uint8), caps.other
    alike = _alike(inner, lengths[-1], np.eye(len(lengths))[-1])[:-1, :-1]
    together = alike | _of_one_organisation(foreign)
    one_for_all = together.astype(np.float64)
    voices = np.where(heard, w / _count(alike), 0.0)
    if caps.strict:
        wanted, cap = voices * cosine, caps.other
        allowed = _capped(wanted, one_for_all, cap)
        allowed = allowed * min(1.0, caps.others / allowed.sum())
    else:
        wanted = voices / voices.sum() * min(w.sum(), caps.others)
        distinct = (1.0 / _count(together[np.ix_(heard, heard)])).sum()
        cap = max(caps.other, caps.others / float(distinct))
        allowed = _filled(wanted, one_for_all, cap)
    why = (
        Held.LARGE * (clip[:-1] < 1)
        | Held.OPPOSED * ~heard
        | Held.COPIES * (_count(alike) > 1)
        | Held.CAPPED * (allowed < wanted * (1 - _ROUNDING))
    )
    return allowed * clip[:-1], why.astype(np.uint8), cap


def _newcomer(
    w: Floats, inner: Floats, foreign: NDArray[np.int_], caps: Caps
) -> tuple[Floats, NDArray[np.uint8]]:
    """Guard a client that has nothing of its own by which to judge others, (n, n); the row sums to 1.

    Nobody is larger than the median of those it listens to, each with its weight; copies and organisations
    have one vote each, and `caps.other` at most, or an equal share where so few are heard that this is more:
    a signature may be a guess. What is cut off goes to the others, since there is nobody else to give it to;
    who is hardly listened to is raised as `_filled` does it, and no further.
    """
    lengths = np.sqrt(np.diag(inner))
    clip = _clip(lengths, _median(lengths, w))
    alike, fellows = _alike(inner, float(lengths.mean()), w / w.sum()), _of_one_organisation(foreign)
    together = alike | fellows
    asked = w / _count(together)
    asked = asked / asked.sum()
    cap = max(caps.other, 1.0 / float((1.0 / _count(together)).sum()))
    allowed = _filled(asked, together.astype(np.float64), cap)
    allowed = allowed / allowed.sum()
    given, whole = allowed * clip, clip == 1
    given[whole] *= (1.0 - given[~whole].sum()) / given[whole].sum()
    copies, one_of_many = _count(alike) > 1, _count(fellows) > 1
    capped = one_of_many | (allowed < asked * (1 - _ROUNDING))
    why = Held.LARGE * (clip < 1) | Held.COPIES * copies | Held.CAPPED * capped
    return given, why.astype(np.uint8)


def _median(lengths: Floats, w: Floats) -> float:
    """Give the least length that at least half of the weight does not exceed."""
    order = np.argsort(lengths, kind="stable")
    reached = np.cumsum(w[order])
    return float(lengths[order][np.searchsorted(reached, 0.5 * reached[-1])])


def _clip(lengths: Floats, most: float) -> Floats:
    """c_j = min(1, most / |d_j|)."""
    shorter: Floats = np.divide(most, lengths, out=np.ones_like(lengths), where=lengths > most)
    return shorter


def _alike(inner: Floats, length: float, seen_from: Floats) -> NDArray[np.bool_]:
    """Say which of n updates are nearly the same once all are of one length, (n, n); each is as itself.

    Clients that have averaged for rounds have nearly the same update, seen from the start; what tells them
    from copies is what each has learnt since. So directions are compared as seen from a point among them, the
    mean of all under the weights `seen_from` (n,): the receiver's own update, if it has one.
    """
    lengths = np.sqrt(np.diag(inner))
    scale = np.divide(length, lengths, out=np.zeros_like(lengths), where=lengths > 0)
    inner = inner * scale[:, None] * scale[None, :]
    towards = inner @ seen_from
    away = inner - towards[:, None] - towards[None, :] + seen_from @ towards
    alike = _cosines(away) > _COPIES
    np.fill_diagonal(alike, True)
    return alike


def _of_one_organisation(foreign: NDArray[np.int_]) -> NDArray[np.bool_]:
    """Say which clients are of one organisation that is not the receiver's (-1), (n, n)."""
    same: NDArray[np.bool_] = (foreign[:, None] == foreign[None, :]) & (foreign >= 0)[:, None]
    np.fill_diagonal(same, True)
    return same


def _count(together: NDArray[np.bool_]) -> Floats:
    """Count with how many each belongs together, itself included; (n,)."""
    return np.asarray(np.count_nonzero(together, axis=1), np.float64)


def _capped(wanted: Floats, together: Floats, cap: float) -> Floats:
    """Cut everybody down to the cap, and then those that belong together, in all, to the cap; (n,)."""
    allowed = np.minimum(wanted, cap)
    totals = together @ allowed
    cut: Floats = allowed * np.minimum(1.0, cap / np.maximum(totals, _NO_DIVISION_BY_ZERO))
    return cut


def _filled(wanted: Floats, together: Floats, cap: float) -> Floats:
    """Cut down to the caps, and give what is cut off to those who are still below theirs; (n,).

    Everybody's weight is scaled alike before it is cut. The scale is found by halving: the sum grows with it.
    """
    whole = wanted.sum() * (1 - _ROUNDING)
    low, high = 1.0, 1.0
    while _capped(high * wanted, together, cap).sum() < whole and high < _MOST_FILLING:
        low, high = high, 2 * high
    for _ in range(_HALVINGS if high > 1.0 else 0):
        middle = (low + high) / 2
        enough = _capped(middle * wanted, together, cap).sum() >= whole
        low, high = (low, middle) if enough else (middle, high)
    return _capped(low * wanted, together, cap)


def _cosines(inner: Floats) -> Floats:
    """cos(a, b) = a.b / (|a| |b|); NaN where one is zero."""
    lengths = np.sqrt(np.maximum(np.diag(inner), 0.0))
    scale = lengths[:, None] * lengths[None, :]
    cosines: Floats = np.divide(inner, scale, out=np.full_like(inner, np.nan), where=scale > 0)
    return cosines


def _organisations(cohort: Cohort) -> list[int]:
    """Number organisations; who has none stands for itself."""
    named: dict[object, int] = {}
    keys = [facts.organisation or (facts.client,) for facts in cohort.clients]
    return [named.setdefault(key, len(named)) for key in keys]
