"""Release the noisy mean of a random sample of records' sketches, and average releases over rounds.

The mechanism: each of n records is sampled independently with probability m/n, its vector is clipped to
`clip`, Gaussian noise of `noise_multiplier * clip` per coordinate is added to the sum once, and the sum is
divided by m, all in integers of unit clip / 2^30.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import isqrt
from typing import Self

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.float64]
STEPS = 1 << 30
"""Steps of the grid per clip: one step is 2^-30 / z of the noise's standard deviation."""

_LEAST_RELIABILITY = 1e-3
Below = Callable[[int], int]
"""`below(n)` draws uniformly from 0..n-1; `secrets.randbelow` outside tests."""


@dataclass(frozen=True, slots=True)
class Mechanism:
    """One release: `sampled` = m of `records` = n in expectation; all fields are public."""

    sampled: int
    records: int
    noise_multiplier: float
    clip: float
    dim: int

    @property
    def noise_deviation(self) -> float:
        """Return the standard deviation of the noise in a coordinate of a released mean."""
        return self.noise_multiplier * self.clip / self.sampled


@dataclass(frozen=True, slots=True)
class MeanRelease:
    """The mean of all releases so far: (dim,), unclipped.

    Attributes:
        releases: the number of releases.
        noise_variance: the variance of the noise in each coordinate.
        spread: upper bound of the sampling variance over all coordinates, relative to the variance of one
            record's vector (|v|^2 <= clip^2).
        clip: the largest norm of a record's vector.
        epsilon: the cost of all releases of this silo up to the last of these.
    """

    mean: Vector
    releases: int
    noise_variance: float
    spread: float
    clip: float
    epsilon: float

    def tensors(self) -> dict[str, Vector]:
        scalars = [self.releases, self.noise_variance, self.spread, self.clip, self.epsilon]
        return {"released": self.mean, "released_how": np.array(scalars, np.float64)}

    @classmethod
    def of(cls, tensors: Mapping[str, NDArray[np.floating]]) -> Self | None:
        if "released" not in tensors:
            return None
        releases, *scalars = tensors["released_how"].tolist()
        return cls(tensors["released"].astype(np.float64), int(releases), *scalars)

    @property
    def reliability(self) -> float:
        """Estimate the share of |mean|^2 that is neither noise nor sampling error.

        It uses the released mean and public numbers only, which costs no privacy: the noise in |mean|^2 is
        known, and the variance of records is clip^2 - |signal|^2 at most, with equality if most are clipped.
        """
        square = float(self.mean @ self.mean)
        clear = square - self.mean.size * self.noise_variance
        signal = (clear - self.spread * self.clip**2) / (1 - self.spread) if self.spread < 1 else 0.0
        return min(1.0, max(_LEAST_RELIABILITY, signal / square if square > 0 else 0.0))


def sample_records(mechanism: Mechanism, below: Below) -> list[int]:
    """Draw the indices of a release's records, each independently with probability m/n."""
    n, m = mechanism.records, mechanism.sampled
    # One integer draw per record: a share as a float would not be exactly m/n, which the accountant assumes.
    return [record for record in range(n) if below(n) < m]


def release(vectors: Sequence[NDArray[np.floating]], mechanism: Mechanism, below: Below) -> Vector:
    """Clip, sum, add noise and divide: (dim,). Call it once per paid sample of `sample_records`."""
    total = np.zeros(mechanism.dim, np.int64)
    for vector in vectors:
        # Integers, so that the sum is exact and does not depend on the order of records.
        total += on_grid(vector, mechanism.clip)
    # As a fraction: floating-point noise leaks the sum in its low bits (Mironov 2012), integer noise does
    # not.
    variance = (Fraction(mechanism.noise_multiplier) * STEPS) ** 2
    noisy = [int(value) + discrete_gaussian(variance, below) for value in total]
    return np.array(noisy, np.float64) * (mechanism.clip / STEPS / mechanism.sampled)


def on_grid(vector: NDArray[np.floating], clip: float) -> NDArray[np.int64]:
    """Clip to an L2 norm of `clip` and round towards zero to whole steps, of norm STEPS at most.

    A vector that is not finite counts as zero, since refusing the release would reveal the record.
    """
    wide = vector.astype(np.float64)
    if not np.isfinite(wide).all():
        # A refusal would reveal that this record was drawn.
        return np.zeros(wide.shape, np.int64)
    largest = max(clip, float(np.abs(wide).max(initial=0.0)))  # its square may overflow
    small = wide / largest
    # Towards zero, so that rounding shortens the vector.
    whole = np.trunc(small * (STEPS / max(clip / largest, float(np.linalg.norm(small))))).astype(np.int64)
    while int((whole * whole).sum()) > STEPS * STEPS:  # rounding may exceed the norm
        whole -= np.sign(whole)
    return whole


def averaged(before: MeanRelease | None, fresh: Vector, mechanism: Mechanism, epsilon: float) -> MeanRelease:
    """Add a release to the mean over all releases.

    The sampling variance of a mean over k releases of m from n records is (1/n + (1/m - 1/n)/k) of a record's
    variance.
    """
    k = before.releases + 1 if before is not None else 1
    # Averaging is post-processing, and costs no privacy.
    mean = fresh if before is None else before.mean + (fresh - before.mean) / k
    earlier = before.noise_variance * (k - 1) ** 2 if before is not None else 0.0
    n, m = mechanism.records, mechanism.sampled
    return MeanRelease(
        mean=mean,
        releases=k,
        noise_variance=(earlier + mechanism.noise_deviation**2) / k**2,
        spread=1 / n + (1 / m - 1 / n) / k,
        clip=mechanism.clip,
        epsilon=epsilon,
    )


def discrete_gaussian(variance: Fraction, below: Below) -> int:
    """Draw x with probability proportional to exp(-x^2 / (2 variance)), over all integers (algorithm 3 of
    Canonne, Kamath and Steinke, arXiv 2004.00010).

    Floating-point noise leaks the sum in its low bits (Mironov 2012); integer noise does not.

    A discrete Laplace y of scale t = floor(sigma) + 1 is accepted with probability
    exp(-(|y| - variance/t)^2 / (2 variance)).
    """
    t = isqrt(int(variance)) + 1
    while True:
        y = _discrete_laplace(t, below)
        if _bernoulli_exp((abs(y) - variance / t) ** 2 / (2 * variance), below):
            return y


def _discrete_laplace(t: int, below: Below) -> int:
    """Draw y with probability proportional to exp(-|y| / t) (algorithm 2)."""
    while True:
        u = below(t)
        if not _bernoulli_exp(Fraction(u, t), below):
            continue
        v = 0
        while _bernoulli_exp(Fraction(1), below):
            v += 1
        size = u + t * v
        negative = below(2) == 1
        if not (negative and size == 0):  # zero has one representation
            return -size if negative else size


def _bernoulli_exp(gamma: Fraction, below: Below) -> bool:
    """Draw true with probability exp(-gamma), gamma >= 0 (algorithm 1)."""
    while gamma > 1:
        if not _bernoulli_exp(Fraction(1), below):
            return False
        gamma -= 1
    k = 1
    while below(gamma.denominator * k) < gamma.numerator:
        k += 1
    return k % 2 == 1
