"""Updates in few bits: what is decoded is exactly what was meant, and what no encoder writes is refused."""

from __future__ import annotations

from typing import Any, get_args

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from schemas.maths.adapter import Layout, in_order
from schemas.messages.federations import WirePlan
from schemas.messages.recipes import NAMED, Recipe, RecipeName
from schemas.wire.coding import CODES, POSITIONS, SCALES, Coded, bound, decode, encode
from schemas.wire.quantise import LEVELS, Floats, NotEncodable

KEY = ("fed", "client", 3)
FORMATS: list[Any] = ["f32", "f16", "bf16", "int8", "int4"]

magnitudes = st.sampled_from([1e-42, 1e-12, 1e-7, 1e-5, 1e-3, 1.0, 3e4, 1e-3, 0.0])
recipes = st.builds(
    lambda density, values, block: Recipe(reference="served", density=density, values=values, block=block),
    st.sampled_from([1e-6, 0.01, 0.1, 0.3, 0.999, 1.0]),
    st.sampled_from(FORMATS),
    st.sampled_from([64, 128]),
)


@st.composite
def adapters(draw: st.DrawFn) -> dict[str, Floats]:
    """Some tensors of odd and even lengths, of all magnitudes, some of their values zero."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    made: dict[str, Floats] = {}
    for i in range(draw(st.integers(1, 4))):
        shape = draw(
            st.sampled_from([(1,), (2,), (7,), (3, 3), (64,), (65,), (11, 13), (300,), (3, 257), (5000,)])
        )
        values = rng.normal(size=shape) * draw(magnitudes)
        values[rng.random(shape) < draw(st.sampled_from([0.0, 0.5, 1.0]))] = 0
        made[f"b{i}.q.P"] = values.astype(np.float32)
    return made


def layout_of(values: dict[str, Floats]) -> Layout:
    return in_order({name: array.shape for name, array in values.items()})


def decoded(coded: Coded, values: dict[str, Floats], recipe: Recipe) -> dict[str, Floats]:
    return dict(decode(coded, layout_of(values), recipe))


def size(coded: Coded) -> int:
    return sum(stream.nbytes for stream in coded.tensors.values())


@settings(deadline=None, max_examples=300)
@given(adapters(), recipes, st.integers(0, 2**31))
def test_what_is_decoded_is_what_was_meant(values: dict[str, Floats], recipe: Recipe, number: int) -> None:
    coded = encode(values, recipe, "fed", number)
    assert size(coded) <= bound(layout_of(values), recipe)
    seen = decoded(coded, values, recipe)
    assert list(seen) == list(layout_of(values))
    for name, stream in encode(values, recipe, "fed", number).tensors.items():
        assert stream.tobytes() == coded.tensors[name].tobytes()
    # What was decoded has codes of its own: quantising it anew, by the same places, changes nothing.
    again = decoded(
        encode(seen, recipe, "fed", number, keep={name: np.ones(v.shape, bool) for name, v in seen.items()})
        if recipe.density == 1
        else encode(seen, recipe, "fed", number),
        values,
        recipe,
    )
    for name, array in values.items():
        kept = seen[name] != 0
        assert np.count_nonzero(kept) <= max(1, np.ceil(recipe.density * array.size))
        if recipe.values == "f32":
            np.testing.assert_array_equal(seen[name][kept], array[kept])
        if recipe.values in ("f32", "f16", "bf16"):
            np.testing.assert_array_equal(again[name], seen[name])
        if recipe.values in LEVELS and recipe.density == 1:
            step = np.abs(array).max() / LEVELS[recipe.values]
            assert np.abs(seen[name] - array).max() <= step * 1.01 + 2**-23


def test_integers_are_rounded_without_bias() -> None:
    values = {"b0.q.P": np.linspace(-1, 1, 64, dtype=np.float32)}
    for name in ("int4", "int8"):
        recipe = Recipe(values=name)
        mean = np.mean([decoded(encode(values, recipe, i), values, recipe)["b0.q.P"] for i in range(4000)], 0)
        error = 1 / LEVELS[recipe.values] / 2 / np.sqrt(4000)
        assert np.abs(mean - values["b0.q.P"]).max() < 4.5 * error + 1e-5


def test_another_round_rounds_otherwise() -> None:
    values = {"b0.q.P": np.random.default_rng(0).normal(size=64).astype(np.float32)}
    one, other = (encode(values, Recipe(values="int4"), "fed", number) for number in (1, 2))
    assert one.tensors[CODES].tobytes() != other.tensors[CODES].tobytes()


def test_the_largest_values_are_kept_or_those_that_matter_most() -> None:
    values = {"b0.q.P": np.array([4, 3, 2, 1], np.float32)}
    recipe = Recipe(reference="served", density=0.5)
    seen = decoded(encode(values, recipe, *KEY), values, recipe)["b0.q.P"]
    assert seen.tolist() == [4, 3, 0, 0]
    importance = {"b0.q.P": np.array([0, 1, 0, 1], np.float32)}
    seen = decoded(encode(values, recipe, *KEY, importance=importance), values, recipe)["b0.q.P"]
    assert seen.tolist() == [0, 3, 0, 1]


def test_a_strategy_may_prefer_one_tensor_but_not_send_more() -> None:
    values = {name: np.ones(10, np.float32) for name in ("b0.q.P", "b1.q.P")}
    recipe = Recipe(reference="served", density=0.5, values="int4")
    keep = {"b0.q.P": np.ones(10, bool), "b1.q.P": np.zeros(10, bool)}
    seen = decoded(encode(values, recipe, *KEY, keep=keep), values, recipe)
    assert [seen[name].sum() for name in values] == [pytest.approx(10, rel=0.01), 0]
    keep["b1.q.P"][0] = True
    with pytest.raises(ValueError, match="1 values more"):
        encode(values, recipe, *KEY, keep=keep)


def test_nothing_to_say_takes_three_bytes_a_tensor_at_most() -> None:
    values = {"b0.q.P": np.zeros(1000, np.float32)}
    recipe = Recipe(reference="served", density=0.5, values="int4")
    assert size(encode(values, recipe, *KEY)) == 2
    assert not decoded(encode(values, recipe, *KEY), values, recipe)["b0.q.P"].any()


@pytest.mark.parametrize(
    ("value", "formats"),
    [
        (np.nan, FORMATS),
        (np.inf, FORMATS),
        (3.4e38, ["f16", "bf16", "int8", "int4"]),
        (1e7, ["f16", "int8", "int4"]),
        (5e5, ["f16", "int4"]),
    ],
)
def test_what_a_format_cannot_say_is_not_said(value: float, formats: list[Any]) -> None:
    values = {"b0.q.P": np.array([1, value], np.float32)}
    for name in FORMATS:
        recipe = Recipe(values=name)
        if name in formats:
            with pytest.raises(NotEncodable):
                encode(values, recipe, *KEY)
        else:
            assert decoded(encode(values, recipe, *KEY), values, recipe)["b0.q.P"][1] == pytest.approx(
                value, rel=0.01
            )


def test_every_name_is_a_recipe_and_dense_is_plain_tensors() -> None:
    assert set(NAMED) == set(get_args(RecipeName))
    assert [name for name, recipe in NAMED.items() if recipe.is_dense] == ["dense", "f16"]
    assert [name for name, recipe in NAMED.items() if recipe.feeds_back] == [
        "int4_served",
        "top10_int8_served",
    ]


def test_what_is_left_out_needs_a_reference() -> None:
    with pytest.raises(ValidationError, match="density"):
        Recipe(density=0.5)


def test_a_plan_says_a_recipe_by_name_or_spelt_out_and_keeps_it_spelt_out() -> None:
    spelt = {"reference": "own_last", "density": 1.0, "values": "int4", "block": 64}
    for said in ({}, {"recipe": "int4_own_last"}, {"recipe": spelt}):
        assert WirePlan.model_validate(said).model_dump(mode="json")["recipe"] == spelt
    for unknown in ("int5", {"values": "int5"}, {"reference": "own_last", "error_feedback": True}, None):
        with pytest.raises(ValidationError):
            WirePlan.model_validate({"recipe": unknown})


def test_a_plan_that_is_older_than_recipes_goes_on_to_mean_dense() -> None:
    for dtype, name in (("float32", "dense"), ("float16", "f16")):
        plan = WirePlan.model_validate({"dtype": dtype, "compression": "none"})
        assert plan == WirePlan(recipe=NAMED[name], compression="none")  # type: ignore[index]
    for wrong in ({"dtype": "float64"}, {"dtype": "float32", "recipe": "dense"}):
        with pytest.raises(ValidationError):
            WirePlan.model_validate(wrong)


def test_empty_streams_are_left_out() -> None:
    values = {"b0.q.P": np.zeros(8, np.float32)}
    assert encode(values, Recipe(reference="served", density=0.5, values="int4"), *KEY).tensors.keys() == {
        POSITIONS
    }
    assert encode(values, Recipe(values="bf16"), *KEY).tensors.keys() == {CODES}
    assert encode(values, Recipe(values="int8"), *KEY).tensors.keys() == {CODES, SCALES}
