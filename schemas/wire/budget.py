"""Keep an update within a plan's byte budget: say beforehand whether it can be, then mark what travels.

What counts are the streams of an update, or its plain tensors, before zstd. Manifest, signature and header,
some 2 kB, come on top.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from math import prod
from typing import Final

import numpy as np

from schemas.maths.adapter import Layout, is_prior
from schemas.messages.recipes import NAMED, Recipe, RecipeName
from schemas.wire.quantise import Floats, code_bytes, scale_count
from schemas.wire.sparse import Mask, kept_count, longest, write_places

Marks = dict[str, Mask]

_SCALE_BYTES = 2
_HALVINGS = 20
_STEPS = 1000  # a density is offered in thousandths

ANY: Final[Sequence[RecipeName]] = ("f16", "int8_own_last", "int4_own_last")
"""What a plan may be told to send instead, the dearest first."""

WITHOUT_REFERENCE: Final[Sequence[RecipeName]] = ("f16", "int8")
"""The same where there is nothing that an update could be the difference to."""

PLAIN: Final[Sequence[RecipeName]] = ("f16",)
"""The same where an update is sent as plain tensors whatever the recipe."""


def followed(recipe: Recipe, *, begins_anew: bool, ranks_differ: bool) -> tuple[Recipe, Sequence[RecipeName]]:
    """Say by which recipe a strategy's updates travel under a plan's, and which others it can be offered.

    Updates that begin anew every round are the difference to nothing, and those whose ranks differ from the
    weights' are sent as plain tensors: where a plan's recipe asks for more, they are sent dense.
    """
    if ranks_differ:
        return recipe if recipe.is_dense else Recipe(), PLAIN
    if begins_anew:
        return recipe if recipe.reference == "none" else Recipe(), WITHOUT_REFERENCE
    return recipe, ANY


def least(layout: Layout, recipe: Recipe) -> int:
    """Say in how many bytes every update of a layout can travel by a recipe, if it has to.

    Of a sparse one a value of each tensor, whichever it is, and priors whole.
    """
    if recipe.density == 1:
        return _most(((prod(shape), prod(shape)) for shape in layout.values()), recipe)
    sizes = {name: prod(shape) for name, shape in layout.items()}
    return _most(((size, fewest_kept(name, size)) for name, size in sizes.items()), recipe)


def fewest_kept(name: str, size: int) -> int:
    """Say how many values of a tensor always travel: one; all of a prior."""
    return size if is_prior(name) else 1


def shortfall(
    layout: Layout, recipe: Recipe, max_bytes: int | None, offers: Sequence[RecipeName]
) -> str | None:
    """Say why no update of a layout can keep within a budget, and what would; None if it can.

    `offers` are the recipes that could be used in place of this one, with `ANY` sparse ones too.
    """
    needed = least(layout, recipe)
    if max_bytes is None or needed <= max_bytes:
        return None
    if recipe.density < 1:
        return f"wire.max_bytes is {max_bytes}, and the least that does for this adapter is {needed}"
    fact = f"wire.max_bytes is {max_bytes}, and an update of this adapter has {needed} bytes under this plan"
    return f"{fact}: {_offer(layout, max_bytes, offers)}"


def cost(values: Mapping[str, Floats], marks: Mapping[str, Mask], recipe: Recipe) -> int:
    """Say how many bytes the streams of these values have of which the marked ones travel."""
    total = 0
    for name, tensor in values.items():
        mask = (marks[name] & (tensor != 0)).reshape(-1)
        total += write_places(mask).nbytes + _bytes_of(int(np.count_nonzero(mask)), recipe)
    return total


def within(
    marks_at: Callable[[float], Marks],
    density: float,
    values: Mapping[str, Floats],
    recipe: Recipe,
    max_bytes: int | None,
) -> Marks:
    """Mark what `marks_at` does at the largest density up to `density` whose bytes fit the budget.

    A larger density marks what a smaller one does, and more. The smallest is taken to fit: `shortfall`.
    """
    marks = marks_at(density)
    if max_bytes is None or cost(values, marks, recipe) <= max_bytes:
        return marks
    low, high = 0.0, density
    marks = marks_at(low)
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        tried = marks_at(middle)
        if cost(values, tried, recipe) <= max_bytes:
            low, marks = middle, tried
        else:
            high = middle
    return marks


def _offer(layout: Layout, max_bytes: int, offers: Sequence[RecipeName]) -> str:
    for name in offers:
        if least(layout, NAMED[name]) <= max_bytes:
            return f"{name} would do, with {least(layout, NAMED[name])}"
    if offers != ANY:
        return f"the least that does is {least(layout, NAMED[offers[-1]])}, by {offers[-1]}"
    low, high = 0, _STEPS
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if _at_density(layout, middle / _STEPS) <= max_bytes else (low, middle)
    if not low:
        sparsest = Recipe(reference="own_last", density=1 / _STEPS, values="int4")
        said = f'{{"reference": "own_last", "density": {sparsest.density:g}, "values": "int4"}}'
        return f"the least that does is {least(layout, sparsest)}, by {said}"
    return (
        f'{{"reference": "own_last", "density": {low / _STEPS:g}, "values": "int8"}} would do, '
        f"with {_at_density(layout, low / _STEPS)} at most"
    )


def _at_density(layout: Layout, density: float) -> int:
    recipe = Recipe(reference="own_last", density=density, values="int8")
    sizes = [prod(shape) for shape in layout.values()]
    return _most(((size, kept_count(size, density)) for size in sizes), recipe)


def _most(kept: Iterable[tuple[int, int]], recipe: Recipe) -> int:
    """Say how many bytes tensors of these sizes have at most, of which so many values travel."""
    return sum(
        _bytes_of(count, recipe) + (longest(size, count) if recipe.density < 1 else 0) for size, count in kept
    )


def _bytes_of(count: int, recipe: Recipe) -> int:
    return code_bytes(count, recipe.values) + _SCALE_BYTES * scale_count(count, recipe)
