"""Frames that decompress to a large size: their errors, and bounded memory."""

from __future__ import annotations

import io
import tracemalloc

import numpy as np
import pytest
import zstandard

from schemas.wire import errors
from schemas.wire.envelope import unpack
from schemas.wire.header import HEADER_LIMIT

MIB = 2**20
LIMIT = 8 * MIB
TOO_LONG = (HEADER_LIMIT + 1).to_bytes(8, "little")


def frame(body: bytes, *, sized: bool = True) -> bytes:
    writer = zstandard.ZstdCompressor(level=1, write_checksum=True, write_content_size=sized)
    return writer.compress(body)


def refusal(body: bytes, max_bytes: int = LIMIT) -> tuple[type[Exception], int]:
    """Return the refusal of a frame, and the peak of memory in bytes."""
    tracemalloc.start()
    try:
        with pytest.raises(errors.BodyRefused) as caught:
            unpack(body, encoding="zstd", expected={}, max_bytes=max_bytes)
        return caught.type, tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def noise(size: int) -> bytes:
    return np.random.default_rng(0).bytes(size)


def test_a_body_with_oversized_header_is_not_kept() -> None:
    why, peak = refusal(frame(TOO_LONG + noise(3 * MIB)))
    assert why is errors.TensorHeader
    assert peak < MIB


def test_size_and_frame_errors_precede_header_errors() -> None:
    body = frame(TOO_LONG + noise(MIB))
    assert refusal(body, max_bytes=MIB)[0] is errors.DecompressedTooLarge
    assert refusal(body[:-1])[0] is errors.CodecTruncated
    assert refusal(body[:-1] + bytes([body[-1] ^ 1]))[0] is errors.CodecCorrupt
    assert refusal(body + b"x")[0] is errors.CodecTrailing


def test_a_headers_length_may_arrive_byte_by_byte() -> None:
    target = io.BytesIO()
    with zstandard.ZstdCompressor(write_checksum=True).stream_writer(target, closefd=False) as writer:
        for octet in TOO_LONG + bytes(1000):
            writer.write(bytes([octet]))
            writer.flush()
    assert refusal(target.getvalue())[0] is errors.TensorHeader


@pytest.mark.parametrize("beginning", [b"", noise(MIB)])
def test_a_compression_bomb_needs_bounded_memory(beginning: bytes) -> None:
    why, peak = refusal(frame(TOO_LONG + beginning + bytes(64 * MIB), sized=False), max_bytes=48 * MIB)
    assert why is errors.DecompressedTooLarge
    assert peak < 24 * MIB
