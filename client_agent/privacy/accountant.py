"""Compute the privacy cost of releases, and the noise that a budget requires, with dp-accounting.

Privacy loss distributions, which err upwards only, are cross-checked by the Renyi accountant. Neighbours
differ by one added or removed record. The accounted mechanism is a Gaussian release rounded to the grid,
which is post-processing. The discrete Gaussian differs from it: with a sigma of 2^28 steps or more by less
than 1e-18 in total variation per coordinate, and `GRID_SHARE` of delta is reserved for it. The Renyi bound
needs no reserve: at integer orders it holds for the discrete Gaussian itself (arXiv 2004.00010).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from functools import cache
from typing import TYPE_CHECKING

from client_agent.privacy.budget import AccountantsDisagree
from client_agent.privacy.release import Mechanism

if TYPE_CHECKING:
    from dp_accounting import DpEvent, PrivacyAccountant

_ORDERS = (*range(2, 65), 80, 96, 128, 192, 256, 512)
GRID_SHARE = 1e-3
"""The share of delta that is kept for the difference of discrete and continuous noise."""
_SLACK = 1.01  # tolerance for the discretisation of one accountant


def epsilon_of(releases: Iterable[Mechanism], delta: float) -> float:
    """Compute the epsilon of all releases together, at `delta`; see `epsilon_of_counted`."""
    return epsilon_of_counted(((mechanism, 1) for mechanism in releases), delta)


def epsilon_of_counted(releases: Iterable[tuple[Mechanism, int]], delta: float) -> float:
    """Compute the epsilon of all releases together, at `delta`, from mechanisms and how often each was used.

    Raises:
        AccountantsDisagree: the tighter accountant's epsilon exceeds the looser one's.
    """
    counted: Counter[tuple[int, int, float]] = Counter()
    for mechanism, times in releases:
        counted[mechanism.sampled, mechanism.records, mechanism.noise_multiplier] += times
    # Sorted and hashable, so that the cache knows equal histories; a composition takes seconds.
    used = tuple(sorted((mechanism, times) for mechanism, times in counted.items() if times))
    return _epsilon(used, delta) if used else 0.0


@cache
def noise_for(sampled: int, records: int, releases: int, epsilon: float, delta: float) -> float:
    """Return the least noise multiplier, in hundredths, at which `releases` cost `epsilon` at most.

    The search starts from the bound of the Renyi accountant, which is quick and asks for somewhat more noise.
    The accountant of privacy loss distributions decides.
    """
    import dp_accounting as dp

    available = delta * (1 - GRID_SHARE)

    def composed(noise: float) -> DpEvent:
        return dp.SelfComposedDpEvent(_event(sampled, records, noise), releases)

    def suffices(hundredths: int) -> bool:
        losses = _losses().compose(composed(hundredths / 100))
        return bool(losses.get_epsilon(available) <= epsilon)

    bound = float(dp.calibrate_dp_mechanism(_divergences, composed, epsilon, available, tol=1e-2))
    # Whole hundredths, so that the search ends, and equal plans have equal noise in all silos.
    enough = math.ceil(bound * 100) + 1
    too_few = 0
    while enough - too_few > 1:
        # Each composition takes seconds, and the answer is near the bound: one step of a fifth before the
        # bisection.
        middle = (too_few + enough) // 2 if too_few else max(1, enough * 4 // 5)
        if suffices(middle):
            enough = middle
        else:
            too_few = middle
    return enough / 100


@cache
def _epsilon(counted: tuple[tuple[tuple[int, int, float], int], ...], delta: float) -> float:
    def composed(accountant: PrivacyAccountant) -> float:
        for (sampled, records, noise), times in counted:
            accountant.compose(_event(sampled, records, noise), times)
        return float(accountant.get_epsilon(delta * (1 - GRID_SHARE)))

    pld_epsilon = composed(_losses())
    renyi_epsilon = composed(_divergences())
    # `not <=`, so that NaN is refused as well.
    if not pld_epsilon <= renyi_epsilon * _SLACK:
        raise AccountantsDisagree(pld_epsilon, renyi_epsilon)
    return pld_epsilon


def _losses() -> PrivacyAccountant:
    import dp_accounting as dp
    from dp_accounting.pld import PLDAccountant

    return PLDAccountant(dp.NeighboringRelation.ADD_OR_REMOVE_ONE)


def _divergences() -> PrivacyAccountant:
    import dp_accounting as dp
    from dp_accounting.rdp import RdpAccountant

    return RdpAccountant(_ORDERS, dp.NeighboringRelation.ADD_OR_REMOVE_ONE)


def _event(sampled: int, records: int, noise: float) -> DpEvent:
    import dp_accounting as dp

    gaussian = dp.GaussianDpEvent(noise)
    # Without sampling there is no amplification to account for.
    return gaussian if sampled >= records else dp.PoissonSampledDpEvent(sampled / records, gaussian)
