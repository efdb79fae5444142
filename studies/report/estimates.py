"""Means, standard errors and paired differences. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import sqrt
from typing import Literal

from schemas.messages.base import Strict

Verdict = Literal["lower", "higher", "noise", "one draw"]
"""How a difference is from 0, or that its draws are too few or too scattered to know."""

_WITHIN = 2.0
"""Differences within this many standard errors are noise."""


class Estimate(Strict):
    """A mean over independent draws and its standard error, None for a single draw."""

    mean: float
    error: float | None
    values: list[float]


class Pairing(Strict):
    """A comparison of two methods on the same clients and seeds.

    `seeds` estimates the difference of the mean over clients, with seeds as independent draws. `clients` has
    every (client, seed) as a pair: its error is too small if the clients of a seed are correlated. `better`
    and `worse` count these pairs.
    """

    seeds: Estimate
    clients: Estimate
    better: int
    worse: int


def estimate(values: Sequence[float]) -> Estimate:
    """Return the mean and its standard error s / sqrt(n), s with n - 1 in its denominator.

    Raises:
        ValueError: there is no value.
    """
    if not values:
        raise ValueError("no values to estimate from")
    n = len(values)
    mean = sum(values) / n
    if n == 1:
        return Estimate(mean=mean, error=None, values=list(values))
    # n - 1: the few seeds are a sample of all that could have been drawn.
    variance = sum((value - mean) ** 2 for value in values) / (n - 1)
    return Estimate(mean=mean, error=sqrt(variance / n), values=list(values))


def pairing(
    method: Mapping[int, Mapping[str, float]],
    baseline: Mapping[int, Mapping[str, float]],
    *,
    lower_is_better: bool,
) -> Pairing | None:
    """Pair two methods' scores by seed and client; return None without a common seed."""
    differences = [
        [figures[name] - baseline[seed][name] for name in figures if name in baseline[seed]]
        for seed, figures in sorted(method.items())
        if seed in baseline
    ]
    differences = [seed_differences for seed_differences in differences if seed_differences]
    pooled = [difference for seed_differences in differences for difference in seed_differences]
    if not pooled:
        return None
    return Pairing(
        seeds=estimate([sum(seed_differences) / len(seed_differences) for seed_differences in differences]),
        clients=estimate(pooled),
        better=sum(difference < 0 if lower_is_better else difference > 0 for difference in pooled),
        worse=sum(difference > 0 if lower_is_better else difference < 0 for difference in pooled),
    )


def verdict_of(difference: Estimate) -> Verdict:
    """Return whether a paired difference is beyond the noise, which is two standard errors."""
    # One value has no error, and nothing can be told from it.
    if difference.error is None:
        return "one draw"
    if abs(difference.mean) <= _WITHIN * difference.error:
        return "noise"
    return "lower" if difference.mean < 0 else "higher"
