"""The one-sided paired t test: the mean lead of one series over another, and its p-value."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import atan, cos, inf, pi, sin, sqrt
from statistics import fmean, stdev


@dataclass(frozen=True, slots=True)
class Lead:
    """A paired comparison: mean difference, its standard error, and the one-sided p-value `chance`.

    By the paired t test (Student 1908), which assumes normal and independent differences.
    """

    mean: float
    error: float
    chance: float


def lead(values: Sequence[float], over: Sequence[float]) -> Lead:
    """Compute the lead of `values` over `over`, pair by pair.

    Raises:
        ValueError: there are fewer than two pairs, or the lengths differ.
    """
    differences = [a - b for a, b in zip(values, over, strict=True)]
    if len(differences) < 2:
        raise ValueError("a lead is measured on two pairs or more")
    mean, error = spread(differences)
    # Equal differences have no error; their sign alone decides then.
    t = mean / error if error else inf if mean > 0 else -inf
    return Lead(mean, error, upper_tail(t, len(differences) - 1))


def spread(values: Sequence[float]) -> tuple[float, float]:
    """Return the mean and its standard error; the error of a single value is 0."""
    return fmean(values), stdev(values) / sqrt(len(values)) if len(values) > 1 else 0.0


def upper_tail(t: float, freedom: int) -> float:
    """Return P(T >= t) of Student's t with an integer number of degrees of freedom.

    Closed form: Abramowitz and Stegun, Handbook of Mathematical Functions, 26.7.3 and 26.7.4.
    """
    angle = atan(t / sqrt(freedom))
    term = cos(angle) if freedom % 2 else 1.0
    total = 0.0 if freedom == 1 else term
    for k in range(2 + freedom % 2, freedom, 2):
        term *= cos(angle) ** 2 * (k - 1) / k
        total += term
    within = (angle + sin(angle) * total) * 2 / pi if freedom % 2 else sin(angle) * total
    return (1 - within) / 2
