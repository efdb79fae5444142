"""Means and their standard errors, paired differences. Pure: numbers in, numbers out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import sqrt

from schemas.messages.base import Strict


class Estimate(Strict):
    """A mean over independent draws and its standard error, None for a single draw."""

    mean: float
    error: float | None
    values: list[float]


class Pairing(Strict):
    """How one method compares with another on the same clients and seeds.

    `seeds` estimates the difference of the mean over clients; seeds are independent draws. `clients` takes
    every (client, seed) as a pair: its error is too small where clients of a seed go up and down together.
    """

    seeds: Estimate
    clients: Estimate
    better: int
    worse: int


def estimate(values: Sequence[float]) -> Estimate:
    """Give mean and standard error s / sqrt(n), s with n - 1 in its denominator.

    Raises:
        ValueError: there is no value.
    """
    if not values:
        raise ValueError("no values to estimate from")
    n = len(values)
    mean = sum(values) / n
    if n == 1:
        return Estimate(mean=mean, error=None, values=list(values))
    variance = sum((value - mean) ** 2 for value in values) / (n - 1)
    return Estimate(mean=mean, error=sqrt(variance / n), values=list(values))


def pairing(
    ours: Mapping[int, Mapping[str, float]], theirs: Mapping[int, Mapping[str, float]]
) -> Pairing | None:
    """Pair two methods' figures by seed and client; None where they have no seed in common."""
    differences = [
        [figures[name] - theirs[seed][name] for name in figures if name in theirs[seed]]
        for seed, figures in sorted(ours.items())
        if seed in theirs
    ]
    each = [difference for of_seed in differences for difference in of_seed]
    if not each:
        return None
    return Pairing(
        seeds=estimate([sum(of_seed) / len(of_seed) for of_seed in differences]),
        clients=estimate(each),
        better=sum(difference > 0 for difference in each),
        worse=sum(difference < 0 for difference in each),
    )
