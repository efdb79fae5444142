"""Sparse CA-PFL updates: larger shares of important ranks, within density and byte limits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from client_agent.adapters.variational.sparsity import density_at, least_density, unit_densities, unit_marks
from schemas.maths.adapter import in_order, lora_layout, lora_modules, prior_layout, size
from schemas.messages.recipes import Recipe
from schemas.strategies.ca_pfl import CaPflOptions
from schemas.wire.budget import encoded_bytes, fit_budget, min_bytes
from schemas.wire.sparse import Mask
from schemas.wire.streams import decode, encode
from tests.scene.tensors import random_tensors

RANK, RECIPE = 4, Recipe(reference="served", density=0.9, values="int8")
SHAPES = {"q": (40, 40), "v": (24, 40)}


def plan(**changes: Any) -> CaPflOptions:
    return CaPflOptions.model_validate({"warm_rounds": 0} | changes)


def update(layers: int = 2, seed: int = 0) -> dict[str, np.ndarray]:
    """An update whose units are equally large, so that importance alone decides."""
    adapter = lora_layout(layers, SHAPES, RANK)
    layout = in_order({**adapter, **prior_layout(adapter)})
    return random_tensors(layout, seed)


def marks(
    importance: np.ndarray, tensors: dict[str, np.ndarray], density: float = 0.27, **changes: Any
) -> dict[str, Mask]:
    options = plan(**changes)
    return unit_marks(tensors, lora_modules(tensors), importance, span=options.span)(density)


def shares(mask: dict[str, Mask], module: str) -> tuple[np.ndarray, np.ndarray]:
    """Return the share of each unit's values that is marked in A's rows and in B's columns."""
    return mask[f"{module}.A"].mean(1), mask[f"{module}.B"].mean(0)


def flat() -> np.ndarray:
    return np.ones((4, RANK))


def test_more_important_ranks_send_larger_shares() -> None:
    tensors = update()
    mask = marks(flat() * np.array([0.1, 3.0, 1.0, 2.0]), tensors)
    for module in lora_modules(tensors):
        for share in shares(mask, module):
            assert share[0] < share[2] < share[3] < share[1]
        a, b = shares(mask, module)
        np.testing.assert_allclose(a, b, atol=1 / 24)  # the same density, but for whole numbers


def test_importance_row_acts_on_its_own_module() -> None:
    tensors = update()
    modules = lora_modules(tensors)
    assert modules == ("l0.q", "l0.v", "l1.q", "l1.v")
    for row, chosen in enumerate(modules):
        importance = flat()
        importance[row, 2] = 5.0
        mask = marks(importance, tensors)
        largest = {module: max(*shares(mask, module)[0], *shares(mask, module)[1]) for module in modules}
        assert max(largest, key=lambda module: largest[module]) == chosen
        assert shares(mask, chosen)[0].argmax() == shares(mask, chosen)[1].argmax() == 2


def test_largest_values_of_a_unit_are_sent() -> None:
    tensors = update()
    mask = marks(flat(), tensors)
    for name in ("l0.q.A", "l1.v.B"):
        rows, marked_rows = (x if name.endswith("A") else x.T for x in (tensors[name], mask[name]))
        for values, is_sent in zip(np.abs(rows), marked_rows, strict=True):
            assert 0 < is_sent.sum() < values.size
            assert values[is_sent].min() > values[~is_sent].max()


def test_equally_important_units_get_equal_shares() -> None:
    densities = unit_densities(flat(), np.array([80, 64, 80, 64]), 300, span=0.25)
    assert np.ptp(densities) == 0


def test_marks_depend_on_update_and_importance_only() -> None:
    tensors, importance = update(), np.random.default_rng(1).gamma(1.0, size=(4, RANK))
    once, again = (marks(importance, tensors) for _ in range(2))
    assert all(np.array_equal(once[name], again[name]) for name in tensors)


def test_density_falls_to_its_goal_and_stays() -> None:
    densities = [density_at(plan(density=0.2, warm_rounds=4), number) for number in range(1, 8)]
    assert densities == pytest.approx([1.0, 0.8, 0.6, 0.4, 0.2, 0.2, 0.2])
    assert density_at(plan(density=0.2), 1) == 0.2


@given(
    importance=st.lists(st.floats(1e-4, 1e4), min_size=16, max_size=16),
    density=st.floats(0.1, 0.9),
    span=st.floats(0, 1),
    max_bytes=st.one_of(st.none(), st.integers(300, 2000)),
    seed=st.integers(0, 99),
)
@settings(deadline=None, max_examples=60)
def test_sent_values_stay_within_density_and_bytes(
    importance: list[float], density: float, span: float, max_bytes: int | None, seed: int
) -> None:
    tensors = update(seed=seed)
    learnt = np.array(importance).reshape(4, RANK)
    at = unit_marks(tensors, lora_modules(tensors), learnt, span=span)
    mask = fit_budget(at, density, tensors, RECIPE, max_bytes)
    coded = encode(tensors, RECIPE, "test", keep=mask)  # refuses what the recipe does not allow
    layout = {name: values.shape for name, values in tensors.items()}
    assert dict(decode(coded, layout, RECIPE)).keys() == tensors.keys()
    octets = sum(stream.nbytes for stream in coded.tensors.values())
    assert octets == encoded_bytes(tensors, mask, RECIPE)
    sent = sum(int(values.sum()) for values in mask.values())
    assert sent <= density * size(layout) + len(layout)
    if max_bytes is None or encoded_bytes(tensors, at(density), RECIPE) <= max_bytes:
        # Every unit may lose a part of a value in A and one in B, every tensor's share is rounded up.
        assert density * size(layout) - 2 * 4 * RANK - len(layout) <= sent
    else:
        assert octets <= max_bytes
    assert all(mask[name].all() for name in layout if name.endswith(".prior"))


def test_larger_density_includes_marks_of_smaller_one() -> None:
    tensors, importance = update(), np.random.default_rng(1).gamma(1.0, size=(4, RANK))
    at = unit_marks(tensors, lora_modules(tensors), importance, span=0.25)
    few, more = at(0.0), at(0.1)
    assert all(mask.any() == name.endswith(".prior") for name, mask in few.items())
    for density in (0.2, 0.5, 0.9):
        few, more = more, at(density)
        assert all((more[name] >= mask).all() for name, mask in few.items())
        assert sum(int(mask.sum()) for mask in few.values()) < sum(int(mask.sum()) for mask in more.values())


def test_sparse_places_fit_half_the_bitmap_bytes() -> None:
    wide = {"q": (400, 400), "v": (400, 400)}
    adapter = lora_layout(2, wide, RANK)
    layout = in_order({**adapter, **prior_layout(adapter)})
    tensors = random_tensors(layout)
    bitmaps = sum(-(-values.size // 8) for values in tensors.values())
    at = unit_marks(tensors, lora_modules(tensors), flat(), span=0.25)
    mask = fit_budget(at, 0.27, tensors, RECIPE, bitmaps // 2)
    assert 0.97 * (bitmaps // 2) < encoded_bytes(tensors, mask, RECIPE) <= bitmaps // 2
    assert sum(int(values.sum()) for values in mask.values()) > 1.5 * sum(
        int(values.sum()) for name, values in mask.items() if name.endswith(".prior")
    )


def test_least_density_sends_priors_and_some_values() -> None:
    tensors = update()
    layout = {name: values.shape for name, values in tensors.items()}
    mask = marks(flat(), tensors, least_density(layout) + 0.01, span=0.0)
    assert min_bytes(layout, RECIPE) > 0
    assert any(values.any() for name, values in mask.items() if not name.endswith(".prior"))
