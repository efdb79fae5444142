"""Byte budgets: known minimum sizes, and marks that never exceed the budget."""

from __future__ import annotations

import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.maths.adapter import Layout, in_order, lora_layout, prior_layout
from schemas.messages.recipes import NAMED, Recipe
from schemas.wire.budget import (
    Marks,
    encoded_bytes,
    fit_budget,
    min_bytes,
    shortfall,
)
from schemas.wire.sparse import kept_count, largest, max_position_bytes, write_places
from schemas.wire.streams import encode
from tests.scene.tensors import random_tensors

LORA: Layout = lora_layout(2, {"q": (40, 40), "v": (24, 40)}, 4)
SPARSE = Recipe(reference="served", density=0.5, values="int8")


def largest_of(values: dict[str, np.ndarray], density: float) -> Marks:
    return {
        name: largest(np.abs(tensor).reshape(-1), kept_count(tensor.size, density)).reshape(tensor.shape)
        for name, tensor in values.items()
    }


def bytes_of(values: dict[str, np.ndarray], recipe: Recipe, marks: Marks | None = None) -> int:
    return sum(stream.nbytes for stream in encode(values, recipe, "test", keep=marks).tensors.values())


@given(size=st.integers(1, 5000), share=st.floats(0, 1), seed=st.integers(0, 999), even=st.booleans())
@settings(deadline=None)
def test_positions_never_exceed_their_bound(size: int, share: float, seed: int, even: bool) -> None:
    count = round(share * size)
    mask = np.zeros(size, bool)
    drawn = np.random.default_rng(seed).permutation(size)[:count]
    mask[np.linspace(0, size - 1, count).astype(int) if even else drawn] = True
    assert write_places(mask).size <= max_position_bytes(size, int(mask.sum())) <= max_position_bytes(size)


def test_the_bound_of_few_positions_is_tight() -> None:
    mask = np.zeros(127 * 129, bool)
    mask[128::129] = True  # every gap takes two bytes
    assert mask.sum() == 127
    assert write_places(mask).size == max_position_bytes(mask.size, 127) == 1 + 1 + 2 * 127


@pytest.mark.slow
@given(
    budget=st.integers(60, 1200),
    values=st.sampled_from(["int4", "int8", "bf16"]),
    zeros=st.floats(0, 1),
    seed=st.integers(0, 99),
)
@settings(deadline=None, max_examples=60)
def test_marked_values_fit_and_use_the_budget(budget: int, values: str, zeros: float, seed: int) -> None:
    recipe = Recipe.model_validate(SPARSE.model_dump() | {"values": values})
    if shortfall(LORA, recipe, budget) is not None:
        assert budget < min_bytes(LORA, recipe)
        return
    tensors = random_tensors(LORA, seed)
    for tensor in tensors.values():
        tensor[np.random.default_rng(seed).random(tensor.shape) < zeros] = 0
    marks = fit_budget(lambda density: largest_of(tensors, density), 0.5, tensors, recipe, budget)
    assert encoded_bytes(tensors, marks, recipe) == bytes_of(tensors, recipe, marks) <= budget
    if zeros == 0:
        assert bytes_of(tensors, recipe, marks) > 0.9 * min(budget, bytes_of(tensors, recipe)) - 30


def test_a_tight_budget_is_used_up() -> None:
    tensors = random_tensors({"l0.q.A": (8, 4000), "l0.q.B": (4000, 8)})
    for budget in (600, 2000, 6000, 20000):
        marks = fit_budget(lambda density: largest_of(tensors, density), 0.5, tensors, SPARSE, budget)
        assert 0.985 * budget < bytes_of(tensors, SPARSE, marks) <= budget
    free = fit_budget(lambda density: largest_of(tensors, density), 0.5, tensors, SPARSE, None)
    roomy = fit_budget(lambda density: largest_of(tensors, density), 0.5, tensors, SPARSE, 10**6)
    for name, mask in largest_of(tensors, 0.5).items():
        assert (free[name] == mask).all()
        assert (roomy[name] == mask).all()


@pytest.mark.parametrize("name", [name for name, recipe in NAMED.items() if recipe.density == 1])
def test_min_bytes_of_a_dense_update_are_exact(name: str) -> None:
    recipe = NAMED[name]  # type: ignore[index]
    assert min_bytes(LORA, recipe) == bytes_of(random_tensors(LORA), recipe)


def test_min_bytes_of_sparse_updates_include_whole_priors() -> None:
    layout = in_order(LORA | prior_layout(LORA))
    tensors = random_tensors(layout)
    marks = {name: np.zeros(shape, bool) for name, shape in layout.items()}
    for name, mask in marks.items():
        mask.reshape(-1)[slice(None) if name.endswith(".prior") else -1] = True
    assert (
        encoded_bytes(tensors, marks, SPARSE)
        <= min_bytes(layout, SPARSE)
        <= encoded_bytes(tensors, marks, SPARSE) + len(layout)
    )


def test_a_shortfall_names_a_sufficient_recipe_or_budget() -> None:
    dense, int4 = NAMED["dense"], NAMED["int4_own_last"]
    values = sum(np.prod(shape) for shape in LORA.values())
    assert shortfall(LORA, dense, 4 * values) is None
    assert shortfall(LORA, dense, None) is None
    for budget, density in (
        (4 * values - 1, "f16 would do"),
        (2 * values - 1, "int8_own_last would do"),
        (values, "int4_own_last would do"),
        (min_bytes(LORA, int4) - 1, '"values": "int8"} would do'),
        (10, "the least that does is"),
    ):
        message = shortfall(LORA, dense, int(budget))
        assert message is not None
        assert density in message
        assert f"wire.max_bytes is {budget}" in message
    assert shortfall(LORA, SPARSE, min_bytes(LORA, SPARSE)) is None
    message = shortfall(LORA, SPARSE, min_bytes(LORA, SPARSE) - 1)
    assert message is not None
    assert message.endswith(f"is {min_bytes(LORA, SPARSE)}")


def test_a_suggested_density_fits_any_update() -> None:
    budget = 400
    message = shortfall(LORA, NAMED["dense"], budget)
    assert message is not None
    match = re.search(r'"density": ([\d.]+), "values": "int8"} would do, with (\d+) at most', message)
    assert match is not None
    recipe = Recipe(reference="own_last", density=float(match[1]), values="int8")
    for seed in range(5):
        assert bytes_of(random_tensors(LORA, seed), recipe) <= int(match[2]) <= budget
