"""The rank of a LoRA state, and the same state at another rank. Needs no torch."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from schemas.maths.adapter import at_rank, factor_of, module_of
from schemas.maths.factors import Factors

Arrays = dict[str, NDArray[np.float32]]


def rank_of(state: Mapping[str, NDArray[np.float32]]) -> int:
    return next(len(values) for name, values in state.items() if factor_of(name) == "A")


def resize_ranks(state: Mapping[str, NDArray[np.float32]], rank: int) -> Arrays:
    """Return A and B of every module truncated to `rank`, or padded with zeros."""
    resized: Arrays = {}
    for name, values in state.items():
        if factor_of(name) == "A":
            factors = Factors(values, state[f"{module_of(name)}.B"]).of_rank(rank)
            resized |= {name: factors.A, f"{module_of(name)}.B": factors.B}
    return {name: resized[name] for name in at_rank({n: v.shape for n, v in state.items()}, rank)}
