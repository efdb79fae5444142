"""Where every adapter starts: zeros, but A of an ordinary LoRA, which follows from the plan's seed.

What a client has learnt is its state minus this start; both sides compute it, to the bit. Zeros that are
served in place of A and B mean the start too: from A = B = 0 no gradient would ever arise.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod, sqrt

import numpy as np
from numpy.typing import NDArray

from schemas.maths.adapter import Layout, Shape, is_of_one_base_model, module_of
from schemas.maths.seeded_random import uniform


def first_a(
    tensor: str, shape: Shape, seed: int, *, begin: int = 0, count: int | None = None
) -> NDArray[np.float32]:
    """Draw A (r, d_in) as a linear layer's weight is drawn, uniform in +-1/sqrt(d_in).

    Gives `count` of its values from `begin` on, in row order, (count,); all of them by default. The first
    rows of a larger rank are those of a smaller one.
    """
    wanted = prod(shape) - begin if count is None else count
    return uniform((wanted,), 1 / sqrt(shape[1]), "lora", seed, tensor, begin=begin)


def start_values(layout: Layout, seed: int, begin: int, count: int) -> NDArray[np.float32] | None:
    """Give values `begin` to `begin + count` of the start in the order of a layout; None = all are zero."""
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
    """Give a tensor of served weights as who trains on it has it, in its shape: zeros may mean the start.

    `read` gives the tensors of the layout as they are served. A pair A, B that is zero altogether has the A
    of the start; so has A alone, where B does not travel.
    """
    values = read(tensor)
    if not is_of_one_base_model(module_of(tensor)) or not tensor.endswith(".A") or values.any():
        return values
    other = f"{module_of(tensor)}.B"
    if other in layout and read(other).any():
        return values
    return first_a(tensor, values.shape, seed).reshape(values.shape)
