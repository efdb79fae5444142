"""Streams that no encoder writes: their errors, and costs bounded by the layout."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.messages.recipes import Recipe, ValueFormat
from schemas.wire import errors
from schemas.wire.streams import CODES, POSITIONS, SCALES, CodedStreams, Stream, decode

LAYOUT = {"b0.q.P": (1000,), "b0.q.Q": (3,)}
SPARSE = Recipe(reference="served", density=0.02, values="int8")


def places(*octets: int) -> dict[str, Stream]:
    """Twenty places at most in the first tensor, one of three marked in the second."""
    return {POSITIONS: np.array([*octets, 0, 0b001], np.uint8)}


def codes(*items: int, scales: tuple[float, ...] = (1, 1)) -> dict[str, Stream]:
    return {CODES: np.array(items, np.uint8), SCALES: np.array(scales, np.float16)}


def refusal(streams: dict[str, Stream], recipe: Recipe = SPARSE) -> type[Exception]:
    return type(refusal_with_reason(streams, recipe))


def refusal_with_reason(streams: dict[str, Stream], recipe: Recipe = SPARSE) -> errors.BodyRefused:
    with pytest.raises(errors.BodyRefused) as caught:
        list(decode(CodedStreams(streams), LAYOUT, recipe))
    return caught.value


def test_encoded_positions_are_read() -> None:
    far = [1, 2, 5, 0x80 | 993 & 0x7F, 993 >> 7]  # 5, and 999 after leaving out 993
    first, second = dict(decode(CodedStreams(places(*far) | codes(1, 0xFF, 2)), LAYOUT, SPARSE)).values()
    assert np.flatnonzero(first).tolist() == [5, 999]
    assert (first[999], second.tolist()) == (-1, [2, 0, 0])


@pytest.mark.parametrize(
    ("octets", "reason"),
    [
        ([2], "unknown form"),
        ([0, *[0] * 100], "a bitmap is truncated"),
        ([1, 3, 5, 6], "truncated"),  # fewer gaps than their count: the next tensor's bytes are gaps then
        ([1, 1, 0x80, 0x00], "more bytes than it needs"),
        ([1, 0x81, 0x00, 5], "more bytes than it needs"),
        ([1, 1, 0x80 | 1000 & 0x7F, 1000 >> 7], "a position is beyond the tensor"),
        ([1, 2, 0x80 | 999 & 0x7F, 999 >> 7, 0], "a position is beyond the tensor"),
        ([1, 1, 0x80, 0x80, 0x80, 0x80, 0x80, 0x01], "a gap is longer than any tensor"),
        ([1, 1, 0xFF, 0xFF, 0xFF, 0xFF, 0x7F], "a position is beyond the tensor"),
        ([1, 0xFF, 0xFF, 0xFF, 0xFF, 0x7F], "a bitmap is not longer"),
        ([1, 124, *[0] * 124], "a bitmap is not longer"),
        ([1, 22, *[0] * 22], "than density"),
        ([0, *[0] * 124, 1 << 7], "gaps are shorter"),
    ],
)
def test_noncanonical_positions_are_refused(octets: list[int], reason: str) -> None:
    refused = refusal_with_reason(places(*octets) | codes(*[1] * 3))
    assert type(refused) is errors.SparseIndex
    assert reason in str(refused)


def test_a_bitmap_longer_than_its_tensor_is_refused() -> None:
    half = Recipe(reference="served", density=0.5, values="int8")
    streams: dict[str, Stream] = {POSITIONS: np.array([0, *[0x11] * 125, 0, 0b1001], np.uint8)}
    refused = refusal_with_reason(streams | codes(*[1] * 251, scales=(1,) * 5), half)
    assert type(refused) is errors.SparseIndex
    assert "a bitmap marks a position beyond the tensor" in str(refused)


@pytest.mark.parametrize("form", ["f32", "f16", "bf16", "int8", "int4"])
@pytest.mark.parametrize("change", [-1, 1])
def test_codes_of_another_length_are_refused(form: ValueFormat, change: int) -> None:
    size = {"f32": 4012, "f16": 2006, "bf16": 2006, "int8": 1003, "int4": 502}[form] + change
    streams: dict[str, Stream] = {CODES: np.zeros(size, np.uint8)}
    if form in ("int8", "int4"):
        streams[SCALES] = np.zeros(17, np.float16)
    assert refusal(streams, Recipe(values=form)) is errors.StreamLength


def test_a_wrong_number_of_positions_is_refused() -> None:
    for count in (1, 3):
        assert refusal(places(1, 1, 5) | codes(*[1] * count)) is errors.SparseIndex
    assert refusal({POSITIONS: np.zeros(1, np.uint8)}, Recipe(values="int8")) is errors.SparseIndex
    assert refusal({POSITIONS: np.zeros(1, np.uint8)}, Recipe(values="f16")) is errors.SparseIndex


def test_a_wrong_number_of_scales_is_refused() -> None:
    for count in (0, 1, 3):
        assert refusal(places(1, 1, 5) | codes(1, 1, scales=(1,) * count)) is errors.QuantScale
    for count in (0, 16, 18):
        streams = codes(*[1] * 1003, scales=(1,) * count)
        assert refusal(streams, Recipe(values="int8")) is errors.QuantScale
    assert refusal(codes(*[0] * 2006), Recipe(values="f16")) is errors.QuantScale


@pytest.mark.parametrize("scale", [-1.0, -0.0, float("nan"), 1e38])
def test_an_invalid_scale_is_refused(scale: float) -> None:
    with np.errstate(over="ignore"):
        scales = np.array([1, scale], np.float32).astype(np.float16)
    streams: dict[str, Stream] = {**places(1, 1, 5), **codes(1, 1), SCALES: scales}
    assert refusal(streams) is errors.QuantScale


def test_the_most_negative_code_is_refused() -> None:
    for form, size, worst in (("int8", 1003, 0x80), ("int4", 502, 0x08)):
        coded = np.zeros(size, np.uint8)
        coded[300] = worst
        streams: dict[str, Stream] = {CODES: coded, SCALES: np.ones(17, np.float16)}
        assert refusal(streams, Recipe.model_validate({"values": form})) is errors.QuantCode


def test_a_half_byte_behind_the_last_code_is_refused() -> None:
    coded = np.zeros(502, np.uint8)  # 1003 codes
    coded[-1] = 0x10
    streams: dict[str, Stream] = {CODES: coded, SCALES: np.ones(17, np.float16)}
    assert refusal(streams, Recipe(values="int4")) is errors.QuantCode


@pytest.mark.parametrize(
    "octets",
    [
        [],
        [1, 1, 5],  # of the first tensor only
        [1, 1, 5, 1, 0x80],  # a number that does not end
        [1, 1, 5, *[0] * 1000],  # more bytes than all places can have
    ],
)
def test_positions_of_a_wrong_length_are_refused(octets: list[int]) -> None:
    streams: dict[str, Stream] = {POSITIONS: np.array(octets, np.uint8)}
    assert refusal(streams | codes(1)) is errors.SparseIndex


def test_a_zero_scale_requires_zero_codes() -> None:
    coded, scales = np.zeros(1003, np.uint8), np.zeros(17, np.float16)
    decoded = dict(decode(CodedStreams({CODES: coded, SCALES: scales}), LAYOUT, Recipe(values="int8")))
    assert not decoded["b0.q.P"].any()
    coded[63] = 1
    scales[1:] = 1
    assert refusal({CODES: coded, SCALES: scales}, Recipe(values="int8")) is errors.QuantScale


@settings(deadline=None, max_examples=300)
@given(
    st.binary(max_size=60),
    st.binary(max_size=60),
    st.binary(max_size=30).map(lambda raw: raw[: len(raw) // 2 * 2]),
    st.sampled_from(["f32", "f16", "bf16", "int8", "int4"]),
    st.sampled_from([0.01, 0.3, 1.0]),
)
def test_arbitrary_streams_are_refused_in_bounded_memory(
    positions: bytes, coded: bytes, scales: bytes, form: ValueFormat, density: float
) -> None:
    streams: dict[str, Stream] = {
        POSITIONS: np.frombuffer(b"\x01" + positions, np.uint8),
        CODES: np.frombuffer(coded, np.uint8),
        SCALES: np.frombuffer(scales, np.float16),
    }
    recipe = Recipe(reference="served", density=density, values=form)
    tracemalloc.start()
    try:
        list(decode(CodedStreams(streams), LAYOUT, recipe))
    except errors.BodyRefused:
        pass
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peak < 2**18
