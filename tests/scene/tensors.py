"""Tensors by name: random, filled with one value, and compared."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

Shapes = Mapping[str, tuple[int, ...]] | Mapping[str, NDArray[np.float32]]
"""A layout, or tensors whose shapes are meant."""


def random_tensors(shapes: Shapes, seed: int = 0, scale: float = 1.0) -> dict[str, NDArray[np.float32]]:
    """Draw float32 tensors from a normal distribution of deviation `scale`, one after the other."""
    rng = np.random.default_rng(seed)
    drawn = {name: scale * rng.standard_normal(shape) for name, shape in _shapes(shapes).items()}
    return {name: np.asarray(values, np.float32) for name, values in drawn.items()}


def filled_tensors(shapes: Shapes, value: float) -> dict[str, NDArray[np.float32]]:
    """Make float32 tensors whose values are all `value`."""
    return {name: np.full(shape, value, np.float32) for name, shape in _shapes(shapes).items()}


def zero_tensors(shapes: Shapes) -> dict[str, NDArray[np.float32]]:
    """Make float32 tensors of zeros."""
    return filled_tensors(shapes, 0.0)


def split_tensors(values: NDArray[np.generic], shapes: Shapes) -> dict[str, NDArray[np.generic]]:
    """Cut a flat vector into tensors, in the order of the layout."""
    tensors, begin = {}, 0
    for name, shape in _shapes(shapes).items():
        end = begin + int(np.prod(shape))
        tensors[name] = values[begin:end].reshape(shape)
        begin = end
    return tensors


def assert_same_bytes(
    left: Mapping[str, NDArray[np.generic]], right: Mapping[str, NDArray[np.generic]]
) -> None:
    """Fail unless both have the same tensors, to the last bit."""
    assert {name: v.tobytes() for name, v in left.items()} == {name: v.tobytes() for name, v in right.items()}


def _shapes(shapes: Shapes) -> dict[str, tuple[int, ...]]:
    return {name: getattr(shape, "shape", shape) for name, shape in shapes.items()}
