"""Weights as differences to earlier ones: equal values on both sides, with a small rounding error."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.maths.adapter import Layout, in_order
from schemas.messages.recipes import Recipe
from schemas.wire.errors import BodyRefused
from schemas.wire.quantise import LEVELS, Floats, NotEncodable
from schemas.wire.served_difference import DifferenceWriter, reconstructed
from schemas.wire.streams import CODES, SCALES, CodedStreams, Stream, bound, encode
from tests.scene.tensors import random_tensors, zero_tensors

INT8, INT4 = Recipe(reference="served", values="int8"), Recipe(reference="served", values="int4")
LAYOUT = {"b0.q.P": (5, 13), "b0.q.Q": (3,), "l0.v.A": (2, 64), "l0.v.B": (65, 1)}

recipes = st.sampled_from([INT8, INT4, Recipe(reference="served", values="int8", block=128)])
magnitudes = st.sampled_from([1e-42, 1e-7, 1e-3, 1.0, 1e3])


@st.composite
def layouts(draw: st.DrawFn) -> Layout:
    shapes = st.sampled_from([(1,), (7,), (3, 3), (64,), (65,), (11, 13), (3, 257)])
    return in_order({f"b{i}.q.P": draw(shapes) for i in range(draw(st.integers(1, 4)))})


def written(
    values: dict[str, Floats], reference: dict[str, Floats], recipe: Recipe, key: int
) -> tuple[dict[str, Floats], CodedStreams]:
    writer = DifferenceWriter(recipe, "weights", key)
    rounded = {name: writer.add(name, values[name], reference[name]) for name in sorted(values)}
    return rounded, writer.streams()


def rebuilt(
    streams: CodedStreams, layout: Layout, recipe: Recipe, reference: dict[str, Floats]
) -> dict[str, Floats]:
    return dict(reconstructed(streams, layout, recipe, reference.__getitem__))


@settings(deadline=None)
@given(layouts(), recipes, magnitudes, magnitudes, st.integers(0, 2**31))
def test_both_sides_rebuild_equal_weights_within_a_step(
    layout: Layout, recipe: Recipe, large: float, small: float, seed: int
) -> None:
    reference = random_tensors(layout, seed, large)
    values = {name: reference[name] + move for name, move in random_tensors(layout, seed + 1, small).items()}
    rounded, streams = written(values, reference, recipe, seed)
    values_rebuilt = rebuilt(streams, layout, recipe, reference)
    assert list(values_rebuilt) == list(layout)
    for name, exact in values.items():
        assert values_rebuilt[name].tobytes() == rounded[name].tobytes()
        assert values_rebuilt[name].shape == exact.shape
        furthest = np.abs(exact - reference[name]).max()
        step = furthest / LEVELS[recipe.values] * (1 + 2.0**-9) + 2.0**-24 + 2.0**-22 * np.abs(exact).max()
        assert np.abs(values_rebuilt[name].astype(np.float64) - exact).max() <= step
    assert sum(stream.nbytes for stream in streams.tensors.values()) <= bound(layout, recipe)


@settings(deadline=None)
@given(layouts(), recipes, st.integers(0, 2**31))
def test_tensors_added_singly_have_the_same_streams(layout: Layout, recipe: Recipe, seed: int) -> None:
    values, reference = random_tensors(layout, seed), random_tensors(layout, seed + 1)
    _, streams = written(values, reference, recipe, seed)
    whole = encode({name: values[name] - reference[name] for name in layout}, recipe, "weights", seed)
    assert {name: part.tobytes() for name, part in streams.tensors.items()} == {
        name: part.tobytes() for name, part in whole.tensors.items()
    }


def test_equal_weights_have_zero_codes_and_scales() -> None:
    values = random_tensors(LAYOUT, 1)
    rounded, streams = written(values, values, INT4, 0)
    assert not streams.tensors[CODES].any()
    assert not streams.tensors[SCALES].any()
    assert all(rounded[name].tobytes() == values[name].tobytes() for name in values)


@pytest.mark.parametrize(("recipe", "remaining"), [(INT8, 1e-6), (INT4, 1e-4)], ids=["int8", "int4"])
def test_repeated_differences_converge_to_constant_weights(recipe: Recipe, remaining: float) -> None:
    values, state = random_tensors(LAYOUT, 1), zero_tensors(LAYOUT)
    for key in range(12):
        state, _ = written(values, state, recipe, key)
    assert max(float(np.abs(state[name] - values[name]).max()) for name in values) < remaining


def test_rounding_errors_do_not_accumulate_over_rounds() -> None:
    values, state = random_tensors(LAYOUT, 1), zero_tensors(LAYOUT)
    errors = []
    for key in range(300):
        values = {name: array + move for (name, array), move in zip(values.items(), _moves(key), strict=True)}
        state, _ = written(values, state, INT4, key)
        errors.append(max(float(np.abs(state[name] - values[name]).max()) for name in values))
    assert max(errors[200:]) < 1.5 * max(errors[10:110])


def _moves(key: int) -> Iterator[Floats]:
    yield from random_tensors(LAYOUT, key + 10, 0.1).values()


def test_rounding_of_differences_is_unbiased() -> None:
    """The mean of many roundings is the value itself: what clients learn from it has no bias."""
    values, reference = random_tensors(LAYOUT, 1), random_tensors(LAYOUT, 2)
    states = [written(values, reference, INT4, key)[0] for key in range(400)]
    for name, exact in values.items():
        mean = np.mean([state[name] for state in states], axis=0)
        step = np.abs(exact - reference[name]).max() / 7
        assert np.abs(mean - exact).max() < 6 * step / 2 / np.sqrt(len(states))


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 3e38, 1e9])
def test_values_without_a_code_are_not_encodable(value: float) -> None:
    writer = DifferenceWriter(INT8, "weights", 1)
    with pytest.raises(NotEncodable):
        writer.add("b0.q.Q", np.array([1, value, 0], np.float32), np.array([0, -value, 0], np.float32))


@settings(deadline=None, max_examples=100)
@given(
    st.binary(max_size=400),
    st.lists(st.floats(width=16), max_size=8),
    st.sampled_from([INT8, INT4]),
)
def test_hostile_streams_are_refused_or_rebuild_the_layout(
    codes: bytes, scales: list[float], recipe: Recipe
) -> None:
    streams: dict[str, Stream] = {
        CODES: np.frombuffer(codes, np.uint8),
        SCALES: np.array(scales, np.float16),
    }
    reference = random_tensors(LAYOUT, 1)
    try:
        values_rebuilt = rebuilt(CodedStreams(streams), LAYOUT, recipe, reference)
    except BodyRefused:
        return
    assert {name: values.shape for name, values in values_rebuilt.items()} == LAYOUT


@settings(deadline=None)
@given(st.sampled_from([INT8, INT4]), st.integers(0, 2**31), st.data())
def test_a_flipped_stream_bit_is_refused_or_visible(recipe: Recipe, seed: int, data: st.DataObject) -> None:
    reference = random_tensors(LAYOUT, seed)
    rounded, streams = written(random_tensors(LAYOUT, seed + 1), reference, recipe, seed)
    name = data.draw(st.sampled_from(sorted(streams.tensors)))
    raw = bytearray(streams.tensors[name].tobytes())
    place = data.draw(st.integers(0, 8 * len(raw) - 1))
    raw[place // 8] ^= 1 << place % 8
    changed = streams.tensors | {name: np.frombuffer(bytes(raw), streams.tensors[name].dtype)}
    try:
        values_rebuilt = rebuilt(CodedStreams(changed), LAYOUT, recipe, reference)
    except BodyRefused:
        return
    assert any(values_rebuilt[tensor].tobytes() != rounded[tensor].tobytes() for tensor in LAYOUT)
