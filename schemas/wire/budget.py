"""The byte budget of an update: whether a layout can meet it, and which values are sent.

Counted are an update's streams, or its plain tensors, before zstd; manifest, sketch and header (some 2 kB)
are extra.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from math import prod
from typing import Final

import numpy as np

from schemas.maths.adapter import Layout, is_prior
from schemas.messages.recipes import NAMED, Recipe, RecipeName
from schemas.wire.quantise import Floats, code_bytes, scale_count
from schemas.wire.sparse import Mask, kept_count, max_position_bytes, write_places

Marks = dict[str, Mask]

_SCALE_BYTES = 2
_HALVINGS = 20
_STEPS = 1000  # offered densities are multiples of 1/1000

_OFFERS: Final[tuple[RecipeName, ...]] = ("f16", "int8_own_last", "int4_own_last")


def min_bytes(layout: Layout, recipe: Recipe) -> int:
    """Return the smallest size in bytes that every update of a layout can be sent in.

    With a sparse recipe, that is one value per tensor, and complete priors.
    """
    if recipe.density == 1:
        return _most(((prod(shape), prod(shape)) for shape in layout.values()), recipe)
    sizes = {name: prod(shape) for name, shape in layout.items()}
    return _most(((size, min_count(name, size)) for name, size in sizes.items()), recipe)


def most_bytes(layout: Layout, recipe: Recipe) -> int:
    """Return the largest size in bytes of an update of a layout at the recipe's density."""
    sizes = {name: prod(shape) for name, shape in layout.items()}
    return _most(
        (
            (size, size if is_prior(name) else kept_count(size, recipe.density))
            for name, size in sizes.items()
        ),
        recipe,
    )


def min_count(name: str, size: int) -> int:
    return size if is_prior(name) else 1


def shortfall(layout: Layout, recipe: Recipe, max_bytes: int | None) -> str | None:
    """Return the reason why a layout exceeds a budget, with a recipe that fits; None if it fits."""
    needed = min_bytes(layout, recipe)
    if max_bytes is None or needed <= max_bytes:
        return None
    if recipe.density < 1:
        return f"wire.max_bytes is {max_bytes}, and the least that does for this adapter is {needed}"
    fact = f"wire.max_bytes is {max_bytes}, and an update of this adapter has {needed} bytes under this plan"
    return f"{fact}: {_offer(layout, max_bytes)}"


def encoded_bytes(values: Mapping[str, Floats], marks: Mapping[str, Mask], recipe: Recipe) -> int:
    """Return the size in bytes of the streams when only marked values are sent."""
    total = 0
    for name, tensor in values.items():
        mask = (marks[name] & (tensor != 0)).reshape(-1)
        total += write_places(mask).nbytes + _bytes_of(int(np.count_nonzero(mask)), recipe)
    return total


def fit_budget(
    marks_at: Callable[[float], Marks],
    density: float,
    values: Mapping[str, Floats],
    recipe: Recipe,
    max_bytes: int | None,
) -> Marks:
    """Return the marks of the largest density, up to `density`, that fits the budget.

    The smallest density must fit: see `shortfall`.
    """
    marks = marks_at(density)
    if max_bytes is None or encoded_bytes(values, marks, recipe) <= max_bytes:
        return marks
    low, high = 0.0, density
    marks = marks_at(low)
    # A larger density marks a superset, so that sizes grow with it and bisection finds the largest that
    # fits.
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        candidate = marks_at(middle)
        if encoded_bytes(values, candidate, recipe) <= max_bytes:
            low, marks = middle, candidate
        else:
            high = middle
    return marks


def _offer(layout: Layout, max_bytes: int) -> str:
    for name in _OFFERS:
        if min_bytes(layout, NAMED[name]) <= max_bytes:
            return f"{name} would do, with {min_bytes(layout, NAMED[name])}"
    low, high = 0, _STEPS
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if _at_density(layout, middle / _STEPS) <= max_bytes else (low, middle)
    if not low:
        sparsest = Recipe(reference="own_last", density=1 / _STEPS, values="int4")
        spelt = f'{{"reference": "own_last", "density": {sparsest.density:g}, "values": "int4"}}'
        return f"the least that does is {min_bytes(layout, sparsest)}, by {spelt}"
    return (
        f'{{"reference": "own_last", "density": {low / _STEPS:g}, "values": "int8"}} would do, '
        f"with {_at_density(layout, low / _STEPS)} at most"
    )


def _at_density(layout: Layout, density: float) -> int:
    recipe = Recipe(reference="own_last", density=density, values="int8")
    sizes = [prod(shape) for shape in layout.values()]
    return _most(((size, kept_count(size, density)) for size in sizes), recipe)


def _most(counts: Iterable[tuple[int, int]], recipe: Recipe) -> int:
    """Return the largest size in bytes of tensors given as (size, sent values)."""
    return sum(
        _bytes_of(count, recipe) + (max_position_bytes(size, count) if recipe.density < 1 else 0)
        for size, count in counts
    )


def _bytes_of(count: int, recipe: Recipe) -> int:
    return code_bytes(count, recipe.values) + _SCALE_BYTES * scale_count(count, recipe)
