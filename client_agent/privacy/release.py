"""Release the noisy mean of a random sample of records' sketches, and average releases over rounds.

The mechanism: each of n records is drawn by itself with probability m/n, its vector is clipped to `clip`,
their sum gets Gaussian noise of `noise_multiplier * clip` per coordinate, once, and is divided by m. All of
it happens in integers: a unit is clip / 2^30. Knows no model, no plan and no file.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Self

import numpy as np
from numpy.typing import NDArray

from client_agent.privacy.noise import Below, discrete_gaussian

Vector = NDArray[np.float64]
STEPS = 1 << 30
"""Steps of the grid per clip: one step is 2^-30 / z of the noise's standard deviation."""

_LEAST_RELIABILITY = 1e-3


@dataclass(frozen=True, slots=True)
class Mechanism:
    """One release: `sampled` = m of `records` = n in expectation; n, m and all else are no secret."""

    sampled: int
    records: int
    noise_multiplier: float
    clip: float
    dim: int

    @property
    def noise(self) -> float:
        """The standard deviation of the noise in a coordinate of a released mean."""
        return self.noise_multiplier * self.clip / self.sampled


@dataclass(frozen=True, slots=True)
class Averaged:
    """The mean of all releases so far: (dim,), unclipped.

    Attributes:
        releases: how many.
        noise: the variance of the noise in each coordinate.
        spread: the most that the variance of which records were drawn can be, over all coordinates, in
            units of what one record's vector varies by (|v|^2 <= clip^2).
        clip: how long a record's vector may be.
        epsilon: what all releases of this silo had cost when the last of these was made.
    """

    mean: Vector
    releases: int
    noise: float
    spread: float
    clip: float
    epsilon: float

    def tensors(self) -> dict[str, Vector]:
        """Say it in arrays, to be kept in a file."""
        said = [self.releases, self.noise, self.spread, self.clip, self.epsilon]
        return {"released": self.mean, "released_how": np.array(said, np.float64)}

    @classmethod
    def of(cls, tensors: Mapping[str, NDArray[np.floating]]) -> Self | None:
        """Read what `tensors` said; None if nothing of it is there."""
        if "released" not in tensors:
            return None
        releases, *rest = tensors["released_how"].tolist()
        return cls(tensors["released"].astype(np.float64), int(releases), *rest)

    @property
    def reliability(self) -> float:
        """Estimate the share of |mean|^2 that is neither noise nor chance of the sample.

        From the released mean and public numbers alone, which costs no privacy: what noise adds to |mean|^2
        is known, and records vary by clip^2 - |signal|^2 at most, which it is where most are clipped.
        """
        square = float(self.mean @ self.mean)
        clear = square - self.mean.size * self.noise
        signal = (clear - self.spread * self.clip**2) / (1 - self.spread) if self.spread < 1 else 0.0
        return min(1.0, max(_LEAST_RELIABILITY, signal / square if square > 0 else 0.0))


def drawn(mechanism: Mechanism, below: Below) -> list[int]:
    """Draw the numbers of the records that a release reads: each by itself, with probability m/n."""
    n, m = mechanism.records, mechanism.sampled
    return [record for record in range(n) if below(n) < m]


def release(vectors: Sequence[NDArray[np.floating]], mechanism: Mechanism, below: Below) -> Vector:
    """Clip, sum, add noise, divide: (dim,). May be called once for what `drawn` chose, and paid for."""
    total = np.zeros(mechanism.dim, np.int64)
    for vector in vectors:
        total += on_grid(vector, mechanism.clip)
    variance = (Fraction(mechanism.noise_multiplier) * STEPS) ** 2
    noisy = [int(value) + discrete_gaussian(variance, below) for value in total]
    return np.array(noisy, np.float64) * (mechanism.clip / STEPS / mechanism.sampled)


def on_grid(vector: NDArray[np.floating], clip: float) -> NDArray[np.int64]:
    """Clip to an L2 norm of `clip` and round towards zero to whole steps: never longer than STEPS.

    A vector that is not finite counts as zero: its record is not worth refusing the release for, which all
    could see.
    """
    wide = vector.astype(np.float64)
    if not np.isfinite(wide).all():
        return np.zeros(wide.shape, np.int64)
    largest = max(clip, float(np.abs(wide).max(initial=0.0)))  # a square of it may be out of reach
    small = wide / largest
    whole = np.trunc(small * (STEPS / max(clip / largest, float(np.linalg.norm(small))))).astype(np.int64)
    while int((whole * whole).sum()) > STEPS * STEPS:  # floating point may have been a little too long
        whole -= np.sign(whole)
    return whole


def averaged(before: Averaged | None, fresh: Vector, mechanism: Mechanism, epsilon: float) -> Averaged:
    """Take a release into the mean over all of them.

    Of a mean over k releases of m from n records, what varies with the draw of these and of the records is
    (1/n + (1/m - 1/n)/k) of a record's variance.
    """
    k = before.releases + 1 if before is not None else 1
    mean = fresh if before is None else before.mean + (fresh - before.mean) / k
    earlier = before.noise * (k - 1) ** 2 if before is not None else 0.0
    n, m = mechanism.records, mechanism.sampled
    return Averaged(
        mean=mean,
        releases=k,
        noise=(earlier + mechanism.noise**2) / k**2,
        spread=1 / n + (1 / m - 1 / n) / k,
        clip=mechanism.clip,
        epsilon=epsilon,
    )
