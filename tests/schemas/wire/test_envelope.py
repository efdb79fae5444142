"""What the doors of the wire let through, and what they refuse."""

from __future__ import annotations

import io
import json
import random

import numpy as np
import pytest
import safetensors.numpy
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from schemas.maths.adapter import block_modules, pq_layout
from schemas.messages.updates import UpdateManifest, WeightsManifest
from schemas.wire import refusals
from schemas.wire.digests import digest_of, from_field, to_field
from schemas.wire.envelope import Array, head, pack, slots, unpack
from schemas.wire.header import Slot

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


def test_what_is_packed_opens_with_the_public_library() -> None:
    opened = safetensors.numpy.load(pack(tensors(), MANIFEST))
    assert opened.keys() == LAYOUT.keys()
    for name, values in tensors().items():
        np.testing.assert_array_equal(opened[name], values)


def test_what_the_public_library_saves_is_let_in() -> None:
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


@settings(deadline=None, max_examples=50)
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
def test_a_body_comes_out_as_it_went_in(values: dict[str, Array], compress: bool) -> None:
    body = pack(values, MANIFEST, compress=compress)
    assert body == pack(values, MANIFEST, compress=compress)
    expected = {name: Slot(array.shape) for name, array in values.items()}
    with unpack(body, encoding="zstd" if compress else None, expected=expected, max_bytes=LIMIT) as envelope:
        for name, array in values.items():
            assert envelope.read(name).dtype == array.dtype
            np.testing.assert_array_equal(envelope.read(name), array)


def test_tensors_of_a_body_in_memory_lie_in_it_and_cannot_be_written() -> None:
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
def test_tensors_are_aligned_whatever_the_length_of_the_header(padding: int) -> None:
    values = np.arange(6, dtype=np.float32)
    header = json.dumps({"w": entry([6], 0, 24)}).encode()
    header += b" " * (-len(header) % 8 + padding)
    body = len(header).to_bytes(8, "little") + header + values.tobytes()
    with unpack(body, encoding=None, expected={"w": Slot((6,))}, max_bytes=LIMIT) as envelope:
        read = envelope.read_float32("w")
    assert read.flags.aligned
    np.testing.assert_array_equal(read, values)


def test_a_head_and_the_values_behind_it_are_a_body() -> None:
    values = tensors()
    streamed = head(LAYOUT, MANIFEST) + b"".join(values[name].tobytes() for name in LAYOUT)
    assert streamed == pack(values, MANIFEST)


def test_the_norm_is_that_of_the_named_tensors() -> None:
    values = tensors()
    names = ["b0.q.P", "b1.v.Q"]
    with unpack(pack(values, MANIFEST), encoding=None, expected=EXPECTED, max_bytes=LIMIT) as envelope:
        together = np.concatenate([values[name].ravel() for name in names])
        assert envelope.norm(names) == pytest.approx(np.linalg.norm(together))


def refusal(
    body: bytes, *, encoding: str | None = None, expected: dict[str, Slot] | None = None
) -> type[Exception]:
    with pytest.raises(refusals.BodyRefused) as caught:
        unpack(
            body,
            encoding="zstd" if encoding else None,
            expected=EXPECTED if expected is None else expected,
            max_bytes=LIMIT,
        )
    return caught.type


def entry(shape: object, begin: object, end: object, dtype: object = "F32") -> dict[str, object]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


ONE = {"x": Slot((2,))}
TWO = {"x": Slot((2,)), "y": Slot((2,))}


@pytest.mark.parametrize(
    ("body", "expected", "why"),
    [
        (b"", ONE, refusals.TensorHeader),
        (b"1234567", ONE, refusals.TensorHeader),
        (body_of(b"{" + b" " * 2**17 + b"}"), ONE, refusals.TensorHeader),
        ((2**63).to_bytes(8, "little"), ONE, refusals.TensorHeader),
        ((2**64 - 1).to_bytes(8, "little"), ONE, refusals.TensorHeader),
        ((100).to_bytes(8, "little") + b"{}", ONE, refusals.TensorHeader),
        (body_of(b' {"x":1}'), ONE, refusals.TensorHeader),
        (body_of(b'{"x":{"dtype":"F32"},"x":{}}'), ONE, refusals.TensorHeader),
        (body_of(b'{"\xff":1}'), ONE, refusals.TensorHeader),
        (body_of(b'{"x":' + b"[" * 60_000), ONE, refusals.TensorHeader),
        (body_of(b'{"x":{"dtype":"F32","shape":[' + b"9" * 5000 + b"]}}"), ONE, refusals.TensorHeader),
        (body_of(b'{"\\ud800":1}'), ONE, refusals.TensorHeader),
        (body_of([1]), ONE, refusals.TensorHeader),
        (body_of({"x": 1}), ONE, refusals.TensorHeader),
        (body_of({"x": entry([2], 0, 8), "__metadata__": {"a": 1}}, b"\0" * 8), ONE, refusals.TensorHeader),
        (body_of({"z": entry([2], 0, 8)}, b"\0" * 8), ONE, refusals.TensorSchema),
        (body_of({"../x": entry([2], 0, 8)}, b"\0" * 8), ONE, refusals.TensorSchema),
        (body_of({"x": entry([3], 0, 12)}, b"\0" * 12), ONE, refusals.TensorSchema),
        (body_of({"x": entry([1] * 65, 0, 4)}, b"\0" * 4), ONE, refusals.TensorSchema),
        (body_of({"x": entry([-1], 0, 8)}, b"\0" * 8), ONE, refusals.TensorSchema),
        (body_of({"x": entry([2.0], 0, 8)}, b"\0" * 8), ONE, refusals.TensorSchema),
        (body_of({"x": entry([True], 0, 4)}, b"\0" * 4), {"x": Slot((None,))}, refusals.TensorSchema),
        (body_of({"x": entry([2**32, 2**32], 0, 8)}, b"\0" * 8), ONE, refusals.TensorSchema),
        (body_of({"x": entry([2], 0, 4, "BF16")}, b"\0" * 4), ONE, refusals.TensorDtype),
        (body_of({"x": entry([2], 0, 2, "F13")}, b"\0" * 2), ONE, refusals.TensorDtype),
        (body_of({"x": entry([2], 0, 8, "I32")}, b"\0" * 8), ONE, refusals.TensorDtype),
        (body_of({"x": entry([2], 0, 8), "y": entry([2], 0, 8)}, b"\0" * 8), TWO, refusals.TensorLayout),
        (body_of({"x": entry([2], 0, 8), "y": entry([2], 12, 20)}, b"\0" * 20), TWO, refusals.TensorLayout),
        (body_of({"x": entry([2], 8, 0)}, b"\0" * 8), ONE, refusals.TensorLayout),
        (body_of({"x": entry([2], -8, 0)}, b"\0" * 8), ONE, refusals.TensorLayout),
        (body_of({"x": entry([2], 0, 8)}, b"\0" * 8 + b"PK\x05\x06"), ONE, refusals.TensorLayout),
        (body_of({"x": entry([2], 0, 8)}, b"\0" * 4), ONE, refusals.TensorLayout),
    ],
)
def test_a_malformed_body_is_refused_for_what_is_wrong(
    body: bytes, expected: dict[str, Slot], why: type[Exception]
) -> None:
    assert refusal(body, expected=expected) is why


def test_values_that_are_not_ordinary_numbers_are_refused() -> None:
    for value in (np.nan, np.inf, -np.inf, 1e-40):
        values = tensors()
        values["b0.q.P"] = np.full((3, 3), value, np.float32)
        assert refusal(pack(values, MANIFEST)) is refusals.TensorNonfinite


def test_zeros_and_a_few_denormals_are_ordinary() -> None:
    values = {name: np.zeros(shape, np.float32) for name, shape in LAYOUT.items()}
    values["b0.q.P"][0, 0] = 1e-40
    with unpack(pack(values, MANIFEST), encoding=None, expected=EXPECTED, max_bytes=LIMIT) as envelope:
        assert envelope.norm(envelope.names) == pytest.approx(0, abs=1e-30)


def test_a_missing_tensor_is_named_unless_it_is_optional() -> None:
    values = tensors()
    del values["b0.q.P"]
    with pytest.raises(refusals.TensorSchema, match=r"b0\.q\.P"):
        unpack(pack(values, MANIFEST), encoding=None, expected=EXPECTED, max_bytes=LIMIT)
    with unpack(
        pack(values, MANIFEST), encoding=None, expected=slots(LAYOUT, optional=True), max_bytes=LIMIT
    ) as envelope:
        assert "b0.q.P" not in envelope.names


def test_a_manifest_of_another_kind_or_with_wrong_members_is_refused() -> None:
    other = unpack(pack(tensors(), MANIFEST), encoding=None, expected=EXPECTED, max_bytes=LIMIT)
    with other, pytest.raises(refusals.ManifestRefused, match="base"):
        other.manifest(UpdateManifest)
    for examples in ("0", "-1", str(2**63), "1e400", "NaN", "true", '"5"'):
        text = MANIFEST.model_dump_json().replace('"weights"', '"update"')[:-1]
        text += f',"base":"sha256:{"0" * 64}","examples":{examples}}}'
        body = safetensors.numpy.save(tensors(), metadata={"tessera": text})
        envelope = unpack(body, encoding=None, expected=EXPECTED, max_bytes=LIMIT)
        with envelope, pytest.raises(refusals.ManifestRefused):
            envelope.manifest(UpdateManifest)


def test_a_frame_cut_off_at_any_byte_is_refused() -> None:
    frame = pack(tensors(), MANIFEST, compress=True)
    for length in range(len(frame)):
        assert refusal(frame[:length], encoding="zstd") is refusals.CodecTruncated


def test_a_flipped_bit_is_never_let_in_silently() -> None:
    frame = bytearray(pack(tensors(), MANIFEST, compress=True))
    rng = random.Random(0)
    for position in rng.sample(range(len(frame) * 8), 400):
        frame[position // 8] ^= 1 << position % 8
        try:
            with unpack(bytes(frame), encoding="zstd", expected=EXPECTED, max_bytes=LIMIT) as envelope:
                # The one frame header bit that changes nothing: it is unused by the format.
                np.testing.assert_array_equal(envelope.read("b0.q.P"), tensors()["b0.q.P"])
        except refusals.BodyRefused:
            pass
        frame[position // 8] ^= 1 << position % 8


def test_whatever_follows_the_frame_is_refused() -> None:
    frame = pack(tensors(), MANIFEST, compress=True)
    skippable = b"\x50\x2a\x4d\x18" + (4).to_bytes(4, "little") + b"abcd"
    for body in (frame + frame, frame + b"x", frame + skippable, skippable + frame):
        assert refusal(body, encoding="zstd") is refusals.CodecTrailing


def test_a_frame_without_checksum_is_refused() -> None:
    bare = zstandard.ZstdCompressor(write_checksum=False).compress(pack(tensors(), MANIFEST))
    assert refusal(bare, encoding="zstd") is refusals.CodecCorrupt


@pytest.mark.parametrize("announced", [True, False])
def test_a_bomb_is_refused_without_unfolding_it(announced: bool) -> None:
    compressor = zstandard.ZstdCompressor(level=3, write_checksum=True, write_content_size=announced)
    if announced:
        bomb = compressor.compress(b"\0" * 2**28)
    else:
        target = io.BytesIO()
        with compressor.stream_writer(target, closefd=False) as writer:
            for _ in range(256):
                writer.write(b"\0" * 2**20)
        bomb = target.getvalue()
    assert len(bomb) < 16_000
    assert refusal(bomb, encoding="zstd") is refusals.DecompressedTooLarge


def test_a_giant_window_is_refused() -> None:
    parameters = zstandard.ZstdCompressionParameters(
        window_log=30, write_checksum=True, write_content_size=False, enable_ldm=False
    )
    target = io.BytesIO()
    with zstandard.ZstdCompressor(compression_params=parameters).stream_writer(
        target, closefd=False
    ) as writer:
        writer.write(pack(tensors(), MANIFEST))
    assert refusal(target.getvalue(), encoding="zstd") is refusals.CodecWindow


def test_a_plain_body_over_the_limit_is_refused() -> None:
    with pytest.raises(refusals.DecompressedTooLarge):
        unpack(pack(tensors(), MANIFEST), encoding=None, expected=EXPECTED, max_bytes=100)


@settings(deadline=None, max_examples=80)
@given(st.binary(max_size=400))
def test_arbitrary_bytes_raise_only_refusals(body: bytes) -> None:
    for encoding in (None, "zstd"):
        for bytes_in in (body, b"\x28\xb5\x2f\xfd" + body, body_of(body[:50], body)):
            with pytest.raises(refusals.BodyRefused):
                unpack(bytes_in, encoding="zstd" if encoding else None, expected=EXPECTED, max_bytes=LIMIT)


def test_a_digest_survives_its_header_field() -> None:
    digest = digest_of(b"body")
    assert from_field(to_field(digest)) == digest
    assert from_field("md5=:AAAA:") is None
    assert from_field("sha-256=:AAAA:") is None
