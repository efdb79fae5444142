"""Say what releases cost, and how much noise a budget needs. The library counts; nothing is computed here.

dp-accounting's privacy loss distributions, which err upwards only, cross-checked by its Renyi accountant.
Neighbours differ by one record, added or removed. Accounted for is a Gaussian release rounded to the grid,
which is post-processing. The discrete Gaussian is not quite that: with a sigma of 2^28 steps or more the two
differ by less than 1e-18 in total variation per coordinate, and `_GRID_SHARE` of delta is kept for it. The
Renyi bound needs none: at integer orders it holds for the discrete Gaussian itself (arXiv 2004.00010).
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
_SLACK = 1.01  # what one accountant's discretisation may add


def epsilon_of(releases: Iterable[Mechanism], delta: float) -> float:
    """Say what all these releases together cost, at `delta`.

    Raises:
        AccountantsDisagree: the tighter accountant says more than the looser one.
    """
    counted = Counter((one.sampled, one.records, one.noise_multiplier) for one in releases)
    return _epsilon(tuple(sorted(counted.items())), delta) if counted else 0.0


@cache
def noise_for(sampled: int, records: int, releases: int, epsilon: float, delta: float) -> float:
    """Give the least noise multiplier, in hundredths, with which so many releases cost `epsilon` at most."""
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
