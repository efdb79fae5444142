"""Bodies of the wire: what is accepted and what is refused."""

from __future__ import annotations

import json
import random

import numpy as np
import pytest
import safetensors.numpy
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from schemas.maths.adapter import block_modules, pq_layout
from schemas.messages.updates import UpdateManifest, WeightsManifest
from schemas.wire import errors
from schemas.wire.envelope import Array, head, pack, slots, unpack
from schemas.wire.header import Slot
from tests.scene.tensors import zero_tensors

LAYOUT = pq_layout(block_modules(2, ["q", "v"]), 3)
EXPECTED = slots(LAYOUT)
MANIFEST = WeightsManifest(federation="fed", recipe={}, round=1, client="c", pack=None)
LIMIT = 2**20


def tensors(dtype: type = np.float32) -> dict[str, Array]:
    rng = np.random.default_rng(0)
    return {name: rng.normal(size=shape).astype(dtype) for name, shape in LAYOUT.items()}


def body_of(header: object, data: bytes = b"") -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


def test_a_packed_body_opens_with_safetensors() -> None:
    opened = safetensors.numpy.load(pack(tensors(), MANIFEST))
    assert opened.keys() == LAYOUT.keys()
    for name, values in tensors().items():
        np.testing.assert_array_equal(opened[name], values)


def test_a_body_saved_by_safetensors_is_accepted() -> None:
    metadata = {"tessera": MANIFEST.model_dump_json()}
    with unpack(
        safetensors.numpy.save(tensors(), metadata=metadata),
        encoding=None,
        expected=EXPECTED,
        max_bytes=LIMIT,
    ) as envelope:
        assert envelope.manifest(WeightsManifest) == MANIFEST
        np.testing.assert_array_equal(envelope.read("b1.v.P"), tensors()["b1.v.P"])
        assert envelope.float32_run(list(LAYOUT)) is not None


@settings(deadline=None)
@given(
    st.dictionaries(
        st.sampled_from(list(LAYOUT)),
        hnp.arrays(
            st.sampled_from([np.float32, np.float16]),
            hnp.array_shapes(min_dims=1, max_dims=3, min_side=0, max_side=5),
            elements=st.integers(-60000, 60000).map(float),
        ),
        min_size=1,
    ),
    st.booleans(),
)
def test_a_body_is_unpacked_unchanged(values: dict[str, Array], compress: bool) -> None:
    body = pack(values, MANIFEST, compress=compress)
    assert body == pack(values, MANIFEST, compress=compress)
    expected = {name: Slot(array.shape) for name, array in values.items()}
    with unpack(body, encoding="zstd" if compress else None, expected=expected, max_bytes=LIMIT) as envelope:
        for name, array in values.items():
            assert envelope.read(name).dtype == array.dtype
            np.testing.assert_array_equal(envelope.read(name), array)


def test_tensors_are_read_only_views_of_the_body() -> None:
    values = tensors()
    body = pack(values, MANIFEST)
    with unpack(body, encoding=None, expected=EXPECTED, max_bytes=LIMIT) as envelope:
        read = {name: envelope.read_float32(name) for name in LAYOUT}
    inside = np.frombuffer(body, np.uint8)
    for name, array in read.items():
        assert np.shares_memory(array, inside)
        assert not array.flags.writeable
        np.testing.assert_array_equal(array, values[name])


@pytest.mark.parametrize("padding", range(4))
def test_tensors_are_aligned_for_any_header_length(padding: int) -> None:
    values = np.arange(6, dtype=np.float32)
    header = json.dumps({"w": entry([6], 0, 24)}).encode()
    header += b" " * (-len(header) % 8 + padding)
    body = len(header).to_bytes(8, "little") + header + values.tobytes()
    with unpack(body, encoding=None, expected={"w": Slot((6,))}, max_bytes=LIMIT) as envelope:
        read = envelope.read_float32("w")
    assert read.flags.aligned
    np.testing.assert_array_equal(read, values)


def test_a_head_and_its_values_are_a_body() -> None:
    values = tensors()
    streamed = head(LAYOUT, MANIFEST) + b"".join(values[name].tobytes() for name in LAYOUT)
    assert streamed == pack(values, MANIFEST)


def test_the_norm_is_that_of_the_named_tensors() -> None:
    values = tensors()
    names = ["b0.q.P", "b1.v.Q"]
    with unpack(pack(values, MANIFEST), encoding=None, expected=EXPECTED, max_bytes=LIMIT) as envelope:
        together = np.concatenate([values[name].ravel() for name in names])
        assert envelope.norm(names) == pytest.approx(np.linalg.norm(together))


def entry(shape: object, begin: object, end: object, dtype: object = "F32") -> dict[str, object]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (body_of(b'{"\\ud800":1}'), errors.TensorHeader),
        (body_of([1]), errors.TensorHeader),
        (body_of({"x": 1}), errors.TensorHeader),
        (body_of({"x": entry([2], 0, 8), "__metadata__": {"a": 1}}, b"\0" * 8), errors.TensorHeader),
        (body_of({"x": entry([2.0], 0, 8)}, b"\0" * 8), errors.TensorSchema),
        (body_of({"x": entry([True], 0, 4)}, b"\0" * 4), errors.TensorSchema),
        (body_of({"x": entry([2], 0, 8, "I32")}, b"\0" * 8), errors.TensorDtype),
        (body_of({"x": entry([2], -8, 0)}, b"\0" * 8), errors.TensorLayout),
        (body_of({"x": entry([2], 0, 8)}, b"\0" * 4), errors.TensorLayout),
    ],
)
def test_a_malformed_body_is_refused_with_its_error(body: bytes, why: type[errors.BodyRefused]) -> None:
    """Those of the hostile table are sent to a coordinator there."""
    with pytest.raises(why) as caught:
        unpack(body, encoding=None, expected={"x": Slot((None,))}, max_bytes=LIMIT)
    assert caught.type is why


def test_zeros_and_a_denormal_value_are_accepted() -> None:
    values = zero_tensors(LAYOUT)
    values["b0.q.P"][0, 0] = 1e-40
    with unpack(pack(values, MANIFEST), encoding=None, expected=EXPECTED, max_bytes=LIMIT) as envelope:
        assert envelope.norm(envelope.names) == pytest.approx(0, abs=1e-30)


def test_a_missing_tensor_is_refused_unless_optional() -> None:
    values = tensors()
    del values["b0.q.P"]
    with pytest.raises(errors.TensorSchema, match=r"b0\.q\.P"):
        unpack(pack(values, MANIFEST), encoding=None, expected=EXPECTED, max_bytes=LIMIT)
    with unpack(
        pack(values, MANIFEST), encoding=None, expected=slots(LAYOUT, optional=True), max_bytes=LIMIT
    ) as envelope:
        assert "b0.q.P" not in envelope.names


def test_a_manifest_of_another_kind_is_refused() -> None:
    unpacked = unpack(pack(tensors(), MANIFEST), encoding=None, expected=EXPECTED, max_bytes=LIMIT)
    with unpacked, pytest.raises(errors.ManifestRefused, match="base"):
        unpacked.manifest(UpdateManifest)


def test_a_flipped_bit_is_detected() -> None:
    frame = bytearray(pack(tensors(), MANIFEST, compress=True))
    rng = random.Random(0)
    for position in rng.sample(range(len(frame) * 8), 400):
        frame[position // 8] ^= 1 << position % 8
        try:
            with unpack(bytes(frame), encoding="zstd", expected=EXPECTED, max_bytes=LIMIT) as envelope:
                # The one frame header bit that changes nothing: it is unused by the format.
                np.testing.assert_array_equal(envelope.read("b0.q.P"), tensors()["b0.q.P"])
        except errors.BodyRefused:
            pass
        frame[position // 8] ^= 1 << position % 8


def test_a_plain_body_over_the_limit_is_refused() -> None:
    with pytest.raises(errors.DecompressedTooLarge):
        unpack(pack(tensors(), MANIFEST), encoding=None, expected=EXPECTED, max_bytes=100)


@settings(deadline=None, max_examples=300)
@given(st.binary(max_size=400))
def test_arbitrary_bytes_raise_only_refusals(body: bytes) -> None:
    for encoding in (None, "zstd"):
        for bytes_in in (body, b"\x28\xb5\x2f\xfd" + body, body_of(body[:50], body)):
            with pytest.raises(errors.BodyRefused):
                unpack(bytes_in, encoding="zstd" if encoding else None, expected=EXPECTED, max_bytes=LIMIT)
