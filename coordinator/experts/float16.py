"""Round values of experts to float16, in which they are stored and served. Pure."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

EXPERT_DTYPE: Final = "<f2"


def rounded_to_half(values: NDArray[np.float32], rng: np.random.Generator) -> NDArray[np.float16]:
    """Round float32 values to one of the two nearest float16, at random, so that the mean stays.

    Raises:
        ValueError: a value is beyond float16.
    """
    with np.errstate(over="ignore"):
        near = values.astype(EXPERT_DTYPE)
    if not np.isfinite(near).all():
        raise ValueError("a new value of an expert is beyond float16")
    error = values - near.astype(np.float32)
    towards = np.where(error > 0, np.inf, -np.inf).astype(EXPERT_DTYPE)
    beside = np.nextafter(near, towards)
    step = np.abs(beside.astype(np.float32) - near.astype(np.float32))
    # Rounding to the nearest would lose changes below half a step in every round: of a weight of 0.02,
    # those below 8e-6.
    rounds_away = np.isfinite(beside) & (rng.random(len(values), np.float32) * step < np.abs(error))
    rounded: NDArray[np.float16] = np.where(rounds_away, beside, near).astype(EXPERT_DTYPE)
    return rounded
