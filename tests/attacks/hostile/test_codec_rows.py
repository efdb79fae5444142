"""Rows 20 to 24: zstd frames that are bombs, truncated, extended or damaged."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import httpx
import pytest
import zstandard

from tests.attacks.hostile.attack import Case, assert_refused
from tests.attacks.hostile.scene import Scene, read_answer
from tests.scene.rounds import put

_SKIPPABLE = b"\x50\x2a\x4d\x18\x04\x00\x00\x00abcd"
_BOMB_MIB = 256


def _zstd(body: bytes, **options: Any) -> bytes:
    settings = {"write_checksum": True, "write_content_size": True} | options
    return zstandard.ZstdCompressor(level=1, **settings).compress(body)


def _frame(make: Callable[[bytes], bytes]) -> Callable[[Scene], Any]:
    return lambda scene: put(scene.silo, 1, make(scene.good()), "zstd")


def _one_by_one(make: Callable[[bytes], Iterable[bytes]]) -> Callable[[Scene], Iterator[httpx.Response]]:
    """Send many frames, one by one."""
    return lambda scene: (put(scene.silo, 1, frame, "zstd") for frame in make(_zstd(scene.good())))


def _bomb(*, sized: bool) -> bytes:
    size = _BOMB_MIB * 2**20 if sized else -1
    writer = zstandard.ZstdCompressor(level=3, write_checksum=True).compressobj(size=size)
    bomb = b"".join([*(writer.compress(bytes(2**20)) for _ in range(_BOMB_MIB)), writer.flush()])
    assert len(bomb) < 16_000
    return bomb


def _cut(frame: bytes) -> Iterable[bytes]:
    return (frame[:length] for length in range(len(frame)))


def _damaged_checksum(frame: bytes) -> Iterable[bytes]:
    for bit in range(32):
        yield frame[:-4] + (int.from_bytes(frame[-4:], "little") ^ 1 << bit).to_bytes(4, "little")


def _damaged_values(frame: bytes) -> Iterable[bytes]:
    """Flip bits of the values, which lie in the frame as they are: they do not compress."""
    draw = random.Random(0)
    for _ in range(32):
        place, bit = draw.randrange(len(frame) - 44, len(frame) - 4), draw.randrange(8)
        yield frame[:place] + bytes([frame[place] ^ 1 << bit]) + frame[place + 1 :]


CASES = [
    Case(
        20, "a bomb that states its size", _frame(lambda _: _bomb(sized=True)), 413, "decompressed-too-large"
    ),
    Case(20, "a bomb", _frame(lambda _: _bomb(sized=False)), 413, "decompressed-too-large"),
    Case(
        21,
        "a window of 1 GiB",
        _frame(lambda good: b"\x28\xb5\x2f\xfd\x04\xa0" + _zstd(good)[6:]),
        422,
        "codec-window",
    ),
    Case(22, "cut off at every byte", _one_by_one(_cut), 422, "codec-truncated"),
    Case(23, "two frames", _frame(lambda good: _zstd(good) * 2), 422, "codec-trailing"),
    Case(
        23, "a skippable frame before", _frame(lambda good: _SKIPPABLE + _zstd(good)), 422, "codec-trailing"
    ),
    Case(
        23, "a skippable frame behind", _frame(lambda good: _zstd(good) + _SKIPPABLE), 422, "codec-trailing"
    ),
    Case(23, "junk behind", _frame(lambda good: _zstd(good) + b"junk"), 422, "codec-trailing"),
    Case(
        23,
        "a dictionary",
        _frame(lambda good: b"\x28\xb5\x2f\xfd\x05\x40" + b"\x07" + _zstd(good)[6:]),
        422,
        "codec-trailing",
    ),
    Case(23, "no frame at all", _frame(lambda good: good), 422, "codec-trailing"),
    Case(24, "a damaged checksum", _one_by_one(_damaged_checksum), 422, "codec-corrupt"),
    Case(24, "no checksum", _frame(lambda good: _zstd(good, write_checksum=False)), 422, "codec-corrupt"),
]


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_hostile_frame_is_refused(scene: Scene, case: Case) -> None:
    assert_refused(scene, case)


def test_a_flipped_bit_is_a_codec_error(scene: Scene) -> None:
    for frame in _damaged_values(_zstd(scene.good())):
        answer = read_answer(put(scene.silo, 1, frame, "zstd"))
        assert (answer.status, answer.problem.split("-")[0]) == (422, "codec")
