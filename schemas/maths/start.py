"""Initial adapter values: zeros, except `A` of ordinary LoRA, which follows from the plan's seed.

Both sides compute the learnt change as state minus start, to the bit. Served zeros in both `A` and `B` mean
the start too: from A = B = 0 no gradient arises.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod, sqrt

import numpy as np
from numpy.typing import NDArray

from schemas.maths.adapter import Layout, Shape, is_of_one_base_model, module_of
from schemas.maths.seeded_random import uniform, words

_SHARED_EXPERT = "x0."


def restart_seed(seed: int, round_number: int) -> int:
    """Return the seed of a round's first A by a strategy that restarts the adapter in every round."""
    return int(words(1, "restart", seed, round_number)[0] >> np.uint64(1))


def first_a(
    tensor: str, shape: Shape, seed: int, *, begin: int = 0, count: int | None = None
) -> NDArray[np.float32]:
    """Draw `A` (r, d_in) as a linear layer's weight, uniform in +-1/sqrt(d_in).

    Returns `count` values from `begin` on, in row order, (count,); all of them by default. The first rows of
    a larger rank equal those of a smaller one. The shared expert of a bank begins as an adapter without one.
    """
    # The shared expert of a bank begins as an adapter without a bank.
    tensor = tensor.removeprefix(_SHARED_EXPERT)
    length = prod(shape) - begin if count is None else count
    return uniform((length,), 1 / sqrt(shape[1]), "lora", seed, tensor, begin=begin)


def start_values(layout: Layout, seed: int, begin: int, count: int) -> NDArray[np.float32] | None:
    """Return values `begin` to `begin + count` of the start in layout order; None if all are zero."""
    values: NDArray[np.float32] | None = None
    at = 0
    for tensor, shape in layout.items():
        size = prod(shape)
        low, high = max(begin, at), min(begin + count, at + size)
        if low < high and is_of_one_base_model(module_of(tensor)) and tensor.endswith(".A"):
            values = np.zeros(count, np.float32) if values is None else values
            drawn = first_a(tensor, shape, seed, begin=low - at, count=high - low)
            values[low - begin : high - begin] = drawn
        at += size
    return values


def from_start(
    tensor: str, read: Callable[[str], NDArray[np.float32]], seed: int, layout: Layout
) -> NDArray[np.float32]:
    """Return a tensor of served weights as training starts from it; zeros may stand for the start.

    `read` returns served tensors of the layout. A pair `A`, `B` that is entirely zero gets the initial `A`;
    so does `A` alone where `B` is not sent.
    """
    values = read(tensor)
    if not is_of_one_base_model(module_of(tensor)) or not tensor.endswith(".A") or values.any():
        return values
    # Zeros in A and B mean the start; zeros in A beside values in B are learnt.
    b_name = f"{module_of(tensor)}.B"
    if b_name in layout and read(b_name).any():
        return values
    return first_a(tensor, values.shape, seed).reshape(values.shape)
