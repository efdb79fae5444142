"""Compute the privacy cost of releases, and the noise that a budget requires, with dp-accounting.

Privacy loss distributions, which err upwards only, are cross-checked by the Renyi accountant. Neighbours
differ by one added or removed record. The accounted mechanism is a Gaussian release rounded to the grid,
which is post-processing. The discrete Gaussian differs from it: with a sigma of 2^28 steps or more by less
than 1e-18 in total variation per coordinate, and `_GRID_SHARE` of delta is reserved for it. The Renyi bound
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
_GRID_SHARE = 1e-3
_SLACK = 1.01  # tolerance for the discretisation of one accountant


def epsilon_of(releases: Iterable[Mechanism], delta: float) -> float:
    """Compute the epsilon of all releases together, at `delta`.

    Raises:
        AccountantsDisagree: the tighter accountant's epsilon exceeds the looser one's.
    """
    counted = Counter(
        (mechanism.sampled, mechanism.records, mechanism.noise_multiplier) for mechanism in releases
    )
    return _epsilon(tuple(sorted(counted.items())), delta) if counted else 0.0


@cache
def noise_for(sampled: int, records: int, releases: int, epsilon: float, delta: float) -> float:
    """Return the least noise multiplier, in hundredths, at which `releases` cost `epsilon` at most."""
    import dp_accounting as dp

    least: float = dp.calibrate_dp_mechanism(
        _losses,
        lambda noise: dp.SelfComposedDpEvent(_event(sampled, records, noise), releases),
        epsilon,
        delta * (1 - _GRID_SHARE),
        tol=1e-3,
    )
    return math.ceil(least * 100) / 100


@cache
def _epsilon(counted: tuple[tuple[tuple[int, int, float], int], ...], delta: float) -> float:
    import dp_accounting as dp
    from dp_accounting.rdp import RdpAccountant

    def composed(accountant: PrivacyAccountant) -> float:
        for (sampled, records, noise), times in counted:
            accountant.compose(_event(sampled, records, noise), times)
        return float(accountant.get_epsilon(delta * (1 - _GRID_SHARE)))

    tight = composed(_losses())
    loose = composed(RdpAccountant(_ORDERS, dp.NeighboringRelation.ADD_OR_REMOVE_ONE))
    if not tight <= loose * _SLACK:
        raise AccountantsDisagree(tight, loose)
    return tight


def _losses() -> PrivacyAccountant:
    import dp_accounting as dp
    from dp_accounting.pld import PLDAccountant

    return PLDAccountant(dp.NeighboringRelation.ADD_OR_REMOVE_ONE)


def _event(sampled: int, records: int, noise: float) -> DpEvent:
    import dp_accounting as dp

    gaussian = dp.GaussianDpEvent(noise)
    return gaussian if sampled >= records else dp.PoissonSampledDpEvent(sampled / records, gaussian)
