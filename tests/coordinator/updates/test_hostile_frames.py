"""Compressed bodies that must be refused, each with its status and problem type."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import zstandard

from tests.coordinator.updates.target import Target, refused
from tests.taking_part import (
    put,
)

pytestmark = pytest.mark.usefixtures("leaves_no_trace")


def zstd(body: bytes, **options: Any) -> bytes:
    settings = {"write_checksum": True, "write_content_size": True} | options
    return zstandard.ZstdCompressor(level=1, **settings).compress(body)


def _bomb(*, sized: bool) -> bytes:
    writer = zstandard.ZstdCompressor(level=1, write_checksum=True).compressobj(size=2**25 if sized else -1)
    return b"".join([*(writer.compress(bytes(2**20)) for _ in range(32)), writer.flush()])


FRAMES: dict[str, tuple[Callable[[bytes], bytes], int, str]] = {
    "bomb with its size": (lambda _: _bomb(sized=True), 413, "decompressed-too-large"),
    "bomb without its size": (lambda _: _bomb(sized=False), 413, "decompressed-too-large"),
    "window of 1 GiB": (
        lambda good: b"\x28\xb5\x2f\xfd\x04\xa0" + zstd(good)[6:],
        422,
        "codec-window",
    ),
    "cut off": (lambda good: zstd(good)[:-5], 422, "codec-truncated"),
    "cut off in its header": (lambda good: zstd(good)[:5], 422, "codec-truncated"),
    "nothing": (lambda _: b"", 422, "codec-truncated"),
    "two frames": (lambda good: zstd(good) * 2, 422, "codec-trailing"),
    "junk behind": (lambda good: zstd(good) + b"junk", 422, "codec-trailing"),
    "skippable frame before": (
        lambda good: b"\x50\x2a\x4d\x18\x04\x00\x00\x00abcd" + zstd(good),
        422,
        "codec-trailing",
    ),
    "no checksum": (lambda good: zstd(good, write_checksum=False), 422, "codec-corrupt"),
    "a flipped bit": (
        lambda good: (lambda b: b[:-1] + bytes([b[-1] ^ 1]))(zstd(good)),
        422,
        "codec-corrupt",
    ),
}


@pytest.mark.parametrize("frame", FRAMES)
def test_a_hostile_frame_is_refused(target: Target, frame: str) -> None:
    make, status, kind = FRAMES[frame]
    assert refused(put(target.silo, 1, make(target.good()), "zstd")) == (status, kind)
