"""Updates in few bits: exact decoding, and bounded size."""

from __future__ import annotations

import itertools
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.maths.adapter import Layout, in_order
from schemas.messages.recipes import Recipe
from schemas.wire.quantise import LEVELS, Floats, NotEncodable
from schemas.wire.streams import CODES, POSITIONS, SCALES, CodedStreams, bound, decode, encode

KEY = ("fed", "client", 3)
FORMATS: list[Any] = ["f32", "f16", "bf16", "int8", "int4"]

magnitudes = st.sampled_from([1e-42, 1e-12, 1e-7, 1e-5, 1e-3, 1.0, 1e4, 0.0])
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
    tensors: dict[str, Floats] = {}
    for i in range(draw(st.integers(1, 4))):
        shape = draw(
            st.sampled_from([(1,), (2,), (7,), (3, 3), (64,), (65,), (11, 13), (300,), (3, 257), (5000,)])
        )
        values = rng.normal(size=shape) * draw(magnitudes)
        values[rng.random(shape) < draw(st.sampled_from([0.0, 0.5, 1.0]))] = 0
        tensors[f"b{i}.q.P"] = values.astype(np.float32)
    return tensors


def layout_of(values: dict[str, Floats]) -> Layout:
    return in_order({name: array.shape for name, array in values.items()})


def decoded(coded: CodedStreams, values: dict[str, Floats], recipe: Recipe) -> dict[str, Floats]:
    return dict(decode(coded, layout_of(values), recipe))


def plainly_decoded(coded: CodedStreams, layout: Layout, recipe: Recipe) -> dict[str, Floats]:
    """Decode one value at a time, as documented in docs/reference/wire-format.md."""
    codes = coded.tensors.get(CODES, np.empty(0, np.uint8)).tobytes()
    scales = list(coded.tensors.get(SCALES, np.empty(0, np.float16)))
    places = iter(coded.tensors.get(POSITIONS, np.empty(0, np.uint8)).tolist())
    tensors: dict[str, Floats] = {}
    for name, shape in layout.items():
        count = int(np.prod(shape))
        places_sent = list(range(count)) if recipe.density == 1 else plain_places(places, count)
        values = np.zeros(count, np.float32)
        raw, codes = plain_codes(codes, len(places_sent), recipe.values)
        for i, place in enumerate(places_sent):
            scale = scales[i // recipe.block] if recipe.values in LEVELS else 1
            values[place] = np.float32(raw[i]) * np.float32(scale)
        scales = scales[-(-len(places_sent) // recipe.block) :] if recipe.values in LEVELS else []
        tensors[name] = values.reshape(shape)
    assert not codes
    assert not scales
    assert next(places, None) is None
    return tensors


def plain_places(octets: Iterator[int], count: int) -> list[int]:
    def number() -> int:
        total, shift = 0, 0
        while True:
            octet = next(octets)
            total, shift = total | (octet & 0x7F) << shift, shift + 7
            if octet < 0x80:
                return total

    if next(octets) == 0:
        bits = [octet >> i & 1 for octet in itertools.islice(octets, (count + 7) // 8) for i in range(8)]
        return [place for place, bit in enumerate(bits) if bit]
    places = [-1]
    for _ in range(number()):
        places.append(places[-1] + number() + 1)
    return places[1:]


def plain_codes(codes: bytes, count: int, form: str) -> tuple[list[float], bytes]:
    if form == "int4":
        size = (count + 1) // 2
        halves = [half for octet in codes[:size] for half in (octet & 15, octet >> 4)][:count]
        return [half - 16 if half > 7 else half for half in halves], codes[size:]
    letter, width = {"f32": ("f", 4), "f16": ("e", 2), "bf16": ("H", 2), "int8": ("b", 1)}[form]
    raw = struct.unpack(f"<{count}{letter}", codes[: count * width])
    if form == "bf16":
        raw = tuple(struct.unpack("<f", struct.pack("<I", upper << 16))[0] for upper in raw)
    return list(raw), codes[count * width :]


def is_quantised(array: Floats, decoded: Floats, recipe: Recipe) -> bool:
    """Return whether each sent value has a neighbour of its own, and not too many were sent."""
    sent = np.flatnonzero(decoded) if recipe.density < 1 else np.arange(array.size)
    if len(sent) > max(1, np.ceil(recipe.density * array.size)):
        return False
    true, sent_values = array.reshape(-1)[sent].astype(np.float64), decoded.reshape(-1)[sent]
    relative = {"f32": 0.0, "f16": 2.0**-11, "bf16": 2.0**-8}.get(recipe.values)
    if relative is not None:
        return bool(
            (np.abs(true - sent_values) <= relative * np.abs(true) + (2.0**-25 if relative else 0)).all()
        )
    step = np.abs(true).max(initial=0) / LEVELS[recipe.values] * (1 + 2.0**-9) + 2.0**-24
    return bool((np.abs(true - sent_values) <= step).all())


def size(coded: CodedStreams) -> int:
    return sum(stream.nbytes for stream in coded.tensors.values())


@settings(deadline=None, max_examples=300)
@given(adapters(), recipes, st.integers(0, 2**31))
def test_decoded_values_match_the_documented_decoding(
    values: dict[str, Floats], recipe: Recipe, number: int
) -> None:
    coded = encode(values, recipe, "fed", number)
    rebuilt, plain = decoded(coded, values, recipe), plainly_decoded(coded, layout_of(values), recipe)
    assert list(rebuilt) == list(plain)
    for name, array in values.items():
        assert rebuilt[name].tobytes() == plain[name].tobytes()
        assert is_quantised(array, rebuilt[name], recipe)


@settings(deadline=None)
@given(adapters(), recipes, st.integers(0, 2**31))
def test_encoding_is_deterministic_within_its_bound(
    values: dict[str, Floats], recipe: Recipe, number: int
) -> None:
    coded, again = (encode(values, recipe, "fed", number) for _ in range(2))
    assert {n: s.tobytes() for n, s in coded.tensors.items()} == {
        n: s.tobytes() for n, s in again.tensors.items()
    }
    assert size(coded) <= bound(layout_of(values), recipe)


@pytest.mark.slow
def test_integers_are_rounded_without_bias() -> None:
    values = {"b0.q.P": np.linspace(-1, 1, 64, dtype=np.float32)}
    for name in ("int4", "int8"):
        recipe = Recipe(values=name)
        mean = np.mean([decoded(encode(values, recipe, i), values, recipe)["b0.q.P"] for i in range(4000)], 0)
        error = 1 / LEVELS[recipe.values] / 2 / np.sqrt(4000)
        assert np.abs(mean - values["b0.q.P"]).max() < 4.5 * error + 1e-5


def test_rounding_differs_between_rounds() -> None:
    values = {"b0.q.P": np.random.default_rng(0).normal(size=64).astype(np.float32)}
    first, second = (encode(values, Recipe(values="int4"), "fed", number) for number in (1, 2))
    assert first.tensors[CODES].tobytes() != second.tensors[CODES].tobytes()


def test_the_most_important_values_are_sent() -> None:
    values = {"b0.q.P": np.array([4, 3, 2, 1], np.float32)}
    recipe = Recipe(reference="served", density=0.5)
    rebuilt = decoded(encode(values, recipe, *KEY), values, recipe)["b0.q.P"]
    assert rebuilt.tolist() == [4, 3, 0, 0]
    importance = {"b0.q.P": np.array([0, 1, 0, 1], np.float32)}
    rebuilt = decoded(encode(values, recipe, *KEY, importance=importance), values, recipe)["b0.q.P"]
    assert rebuilt.tolist() == [0, 3, 0, 1]


def test_preferred_values_cannot_exceed_the_density() -> None:
    values = {name: np.ones(10, np.float32) for name in ("b0.q.P", "b1.q.P")}
    recipe = Recipe(reference="served", density=0.5, values="int4")
    keep = {"b0.q.P": np.ones(10, bool), "b1.q.P": np.zeros(10, bool)}
    rebuilt = decoded(encode(values, recipe, *KEY, keep=keep), values, recipe)
    assert [rebuilt[name].sum() for name in values] == [pytest.approx(10, rel=0.01), 0]
    keep["b1.q.P"][0] = True
    with pytest.raises(ValueError, match="1 more values"):
        encode(values, recipe, *KEY, keep=keep)


def test_an_empty_sparse_tensor_takes_two_bytes() -> None:
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
def test_values_outside_a_format_are_not_encodable(value: float, formats: list[Any]) -> None:
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


def test_empty_streams_are_left_out() -> None:
    values = {"b0.q.P": np.zeros(8, np.float32)}
    assert encode(values, Recipe(reference="served", density=0.5, values="int4"), *KEY).tensors.keys() == {
        POSITIONS
    }
    assert encode(values, Recipe(values="bf16"), *KEY).tensors.keys() == {CODES}
    assert encode(values, Recipe(values="int8"), *KEY).tensors.keys() == {CODES, SCALES}


def test_the_documented_example_is_true() -> None:
    document = (Path(__file__).parents[4] / "docs" / "reference" / "wire-format.md").read_text("utf-8")
    values = {
        "b0.q.P": np.array([[0.75, -1.75], [0.1, 0]], np.float32),
        "b0.q.Q": np.array([0, 3.5], np.float32),
    }
    recipe = Recipe(reference="served", density=0.5, values="int4")
    coded = encode(values, recipe, *KEY)
    for name, stream in coded.tensors.items():
        assert f"| `{name}` | `{stream.tobytes().hex(' ')}` |" in document
    rebuilt = decoded(coded, values, recipe)
    assert [rebuilt[name].tolist() for name in values] == [[[0.75, -1.75], [0, 0]], [0, 3.5]]
