"""What is sent: more of the ranks that matter, A's rows and B's columns alike, never more than is allowed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from client_agent.errors import StrategyOptionsInvalid
from client_agent.variational.sparsity import affordable, density_at, marked, unit_densities
from schemas.maths.adapter import in_order, lora_layout, lora_modules, prior_layout, size
from schemas.messages.importance import ImportancePlan
from schemas.messages.recipes import Recipe
from schemas.wire.coding import decode, encode
from schemas.wire.sparse import Mask

RANK, RECIPE = 4, Recipe(reference="served", density=0.9, values="int8")
SHAPES = {"q": (40, 40), "v": (24, 40)}


def plan(**changes: Any) -> ImportancePlan:
    return ImportancePlan.model_validate({"warm_rounds": 0} | changes)


def update(layers: int = 2, seed: int = 0) -> dict[str, np.ndarray]:
    """An update whose units are equally large, so that importance alone decides."""
    adapter = lora_layout(layers, SHAPES, RANK)
    layout = in_order({**adapter, **prior_layout(adapter)})
    rng = np.random.default_rng(seed)
    return {name: rng.standard_normal(shape).astype(np.float32) for name, shape in layout.items()}


def marks(importance: np.ndarray, wanted: dict[str, np.ndarray], **changes: Any) -> dict[str, Mask]:
    return marked(wanted, lora_modules(wanted), importance, RECIPE, plan(**changes), 1)


def shares(mask: dict[str, Mask], module: str) -> tuple[np.ndarray, np.ndarray]:
    """Which share of each unit is marked in A's rows, and in B's columns."""
    return mask[f"{module}.A"].mean(1), mask[f"{module}.B"].mean(0)


def flat() -> np.ndarray:
    return np.ones((4, RANK))


def test_more_is_sent_of_a_more_important_rank_in_a_and_in_b_alike() -> None:
    wanted = update()
    mask = marks(flat() * np.array([0.1, 3.0, 1.0, 2.0]), wanted)
    for module in lora_modules(wanted):
        for share in shares(mask, module):
            assert share[0] < share[2] < share[3] < share[1]
        a, b = shares(mask, module)
        np.testing.assert_allclose(a, b, atol=1 / 24)  # the same density, but for whole numbers


def test_each_row_of_importance_acts_on_its_own_module() -> None:
    wanted = update()
    modules = lora_modules(wanted)
    assert modules == ("l0.q", "l0.v", "l1.q", "l1.v")
    for row, chosen in enumerate(modules):
        importance = flat()
        importance[row, 2] = 5.0
        mask = marks(importance, wanted)
        largest = {module: max(*shares(mask, module)[0], *shares(mask, module)[1]) for module in modules}
        assert max(largest, key=lambda module: largest[module]) == chosen
        assert shares(mask, chosen)[0].argmax() == shares(mask, chosen)[1].argmax() == 2


def test_of_a_unit_its_largest_values_are_sent() -> None:
    wanted = update()
    mask = marks(flat(), wanted)
    for name in ("l0.q.A", "l1.v.B"):
        rows, marked_rows = (x if name.endswith("A") else x.T for x in (wanted[name], mask[name]))
        for values, is_sent in zip(np.abs(rows), marked_rows, strict=True):
            assert 0 < is_sent.sum() < values.size
            assert values[is_sent].min() > values[~is_sent].max()


def test_equally_important_units_get_equal_shares() -> None:
    densities = unit_densities(flat(), np.array([80, 64, 80, 64]), 300, span=0.25, cut=0.0)
    assert np.ptp(densities) == 0


def test_what_is_sent_depends_on_nothing_but_the_update_and_what_was_learnt() -> None:
    wanted, importance = update(), np.random.default_rng(1).gamma(1.0, size=(4, RANK))
    once, again = (marks(importance, wanted) for _ in range(2))
    assert all(np.array_equal(once[name], again[name]) for name in wanted)


def test_density_falls_from_one_to_its_goal_and_stays_there() -> None:
    told = [density_at(plan(density=0.2, warm_rounds=4), number) for number in range(1, 8)]
    assert told == pytest.approx([1.0, 0.8, 0.6, 0.4, 0.2, 0.2, 0.2])
    assert density_at(plan(density=0.2), 1) == 0.2


def test_a_rank_below_the_cut_is_not_sent_at_all_and_leaves_its_room_to_the_others() -> None:
    wanted = update()
    importance = flat() * np.array([0.2, 1.0, 1.0, 1.0])
    cut, whole = (marks(importance, wanted, cut=value) for value in (0.5, 0.0))
    for module in lora_modules(wanted):
        assert not shares(cut, module)[0][0]
        assert not shares(cut, module)[1][0]
        assert shares(cut, module)[0][1] > shares(whole, module)[0][1]


def test_a_cut_above_everything_sends_the_priors_alone() -> None:
    wanted = update()
    mask = marks(flat(), wanted, cut=2.0)
    assert all(values.any() == name.endswith(".prior") for name, values in mask.items())


@given(
    importance=st.lists(st.floats(1e-4, 1e4), min_size=16, max_size=16),
    density=st.floats(0.1, 1),
    span=st.floats(0, 1),
    max_bytes=st.one_of(st.none(), st.integers(300, 2000)),
    number=st.integers(1, 4),
    seed=st.integers(0, 99),
)
@settings(deadline=None, max_examples=60)
def test_never_more_is_sent_than_density_recipe_and_bytes_allow(
    importance: list[float], density: float, span: float, max_bytes: int | None, number: int, seed: int
) -> None:
    wanted = update(seed=seed)
    said = plan(density=density, span=span, max_bytes=max_bytes, warm_rounds=2)
    learnt = np.array(importance).reshape(4, RANK)
    mask = marked(wanted, lora_modules(wanted), learnt, RECIPE, said, number)
    coded = encode(wanted, RECIPE, "test", keep=mask)  # refuses what the recipe does not allow
    layout = {name: values.shape for name, values in wanted.items()}
    assert dict(decode(coded, layout, RECIPE)).keys() == wanted.keys()
    if max_bytes is not None:
        assert sum(stream.nbytes for stream in coded.tensors.values()) <= max_bytes
    most = affordable(layout, RECIPE, density_at(said, number), max_bytes)
    sent = sum(int(one.sum()) for one in mask.values())
    # Every unit may lose a part of a value in A and one in B, every tensor's share is rounded up.
    assert most * size(layout) - 2 * 4 * RANK - len(layout) <= sent <= most * size(layout) + len(layout)
    assert all(mask[name].all() for name in layout if name.endswith(".prior"))


def test_the_bytes_allowed_are_used_and_a_budget_beyond_need_changes_nothing() -> None:
    layout = {name: values.shape for name, values in update().items()}
    assert affordable(layout, RECIPE, 0.5, None) == affordable(layout, RECIPE, 0.5, 10**6) == 0.5
    tight, wider = (affordable(layout, RECIPE, 0.5, octets) for octets in (400, 600))
    assert tight < wider < 0.5


def test_a_budget_without_room_for_the_priors_is_refused() -> None:
    with pytest.raises(StrategyOptionsInvalid, match="no room for the priors"):
        marks(flat(), update(), max_bytes=100)
