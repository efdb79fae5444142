"""Whether one expert can take the place of another, by what that costs the members of both. Pure.

For each other expert j, the members of expert k add up d_j = (l_j - l_k) / l_0, a difference of losses on
their probe sets as a share of the loss without a specialist, and d_j^2. Two experts are equivalent if the
mean cost is small for the members of both. "No significant difference" would not do: a few noisy members
show none between any two experts. So an upper bound of the mean is below a margin (a test of
non-inferiority).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from math import inf, sqrt
from typing import Final

Pair = tuple[int, int]
"""An expert whose members measure, and the one that would take its place."""

MARGIN: Final = 0.02
"""The largest mean cost of a merge: a fifth of the regret at which a client rejects all experts."""

# Student's t that 95 % of samples stay below, for 1 to 10 degrees of freedom; more have a smaller one.
_T: Final = (6.314, 2.920, 2.353, 2.132, 2.015, 1.943, 1.895, 1.860, 1.833, 1.812)


@dataclass(frozen=True, slots=True)
class Cost:
    """What an expert in the place of another costs its members: the number, sum d and sum d^2."""

    members: int
    total: float
    squares: float


def costs_of(expert: int, peers: Sequence[int], values: Sequence[float], least: int) -> dict[Pair, Cost]:
    """Return the costs that the members of an expert have added up, by pair.

    `values` are the summed 1, d_j of each of `peers` in order, and d_j^2. There are none if the members
    are fewer than `least`, or their number is not whole: a member spoilt the sum.
    """
    members = round(values[0])
    if members < max(least, 2) or abs(values[0] - members) > 1e-6 * members:
        return {}
    totals, squares = values[1 : 1 + len(peers)], values[1 + len(peers) :]
    return {
        (expert, peer): Cost(members, total, square)
        for peer, total, square in zip(peers, totals, squares, strict=True)
    }


def upper_bound(cost: Cost, step: float) -> float:
    """Return the bound that the mean cost stays below with 95 % confidence; infinite for spoilt sums.

    It is mean + t sqrt(s^2 / n), with Student's t of n - 1 degrees of freedom, which is large for few
    members.

    Args:
        step: the distance of two encoded values. Each is rounded at random to one of its neighbours: the sum
            of n squares has a standard deviation of sqrt(n) step / 2 at most. Twice of it is added.
    """
    n, mean = cost.members, cost.total / cost.members
    rounding = sqrt(n) * step
    spread = cost.squares - n * mean * mean
    # No members have such squares: none is above 1, and their mean is not below the square of the mean.
    if spread < -2 * n * step or not -rounding <= cost.squares <= n + rounding:
        return inf
    variance = (max(0.0, spread) + rounding) / (n - 1)
    return mean + _T[min(n - 1, len(_T)) - 1] * sqrt(variance / n)


def equivalent_pairs(
    costs: Mapping[Pair, Cost], step: float, unused: Collection[int] = ()
) -> dict[Pair, tuple[float, float]]:
    """Return the pairs of experts, in order, of which each can take the other's place, with both bounds.

    An expert that is `unused` has no members who could lose by a merge: its bound is 0. A pair of which one
    expert has members, but too few to be summed, is not among them.
    """
    bounds = {pair: upper_bound(cost, step) for pair, cost in costs.items()}
    equivalent: dict[Pair, tuple[float, float]] = {}
    for first, second in sorted({(min(pair), max(pair)) for pair in bounds}):
        of_first, of_second = (
            bounds.get(pair, 0.0 if pair[0] in unused else inf) for pair in ((first, second), (second, first))
        )
        if max(of_first, of_second) <= MARGIN:
            equivalent[first, second] = of_first, of_second
    return equivalent
