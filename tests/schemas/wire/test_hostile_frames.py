"""Frames that unfold to much: each is told by what is wrong, and none is held in memory as a whole."""

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
    """Say why a frame is refused, and how many bytes were held at most."""
    tracemalloc.start()
    try:
        with pytest.raises(errors.BodyRefused) as caught:
            unpack(body, encoding="zstd", expected={}, max_bytes=max_bytes)
        return caught.type, tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def noise(size: int) -> bytes:
    return np.random.default_rng(0).bytes(size)


def test_of_a_body_whose_header_nobody_reads_nothing_is_kept() -> None:
    why, held = refusal(frame(TOO_LONG + noise(3 * MIB)))
    assert why is errors.TensorHeader
    assert held < MIB


def test_a_header_that_nobody_reads_is_told_after_what_is_wrong_with_size_and_frame() -> None:
    body = frame(TOO_LONG + noise(MIB))
    assert refusal(body, max_bytes=MIB)[0] is errors.DecompressedTooLarge
    assert refusal(body[:-1])[0] is errors.CodecTruncated
    assert refusal(body[:-1] + bytes([body[-1] ^ 1]))[0] is errors.CodecCorrupt
    assert refusal(body + b"x")[0] is errors.CodecTrailing


def test_the_length_of_a_header_may_come_a_byte_at_a_time() -> None:
    target = io.BytesIO()
    with zstandard.ZstdCompressor(write_checksum=True).stream_writer(target, closefd=False) as writer:
        for octet in TOO_LONG + bytes(1000):
            writer.write(bytes([octet]))
            writer.flush()
    assert refusal(target.getvalue())[0] is errors.TensorHeader


@pytest.mark.parametrize("beginning", [b"", noise(MIB)])
def test_a_bomb_unfolds_little_by_little(beginning: bytes) -> None:
    why, held = refusal(frame(TOO_LONG + beginning + bytes(64 * MIB), sized=False), max_bytes=48 * MIB)
    assert why is errors.DecompressedTooLarge
    assert held < 24 * MIB
