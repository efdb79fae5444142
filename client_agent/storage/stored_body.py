"""Open tensor bodies that are in memory already: served weights, and files beside an update."""

from __future__ import annotations

from schemas.wire.compress import is_frame
from schemas.wire.envelope import Encoding, Envelope, unpack
from schemas.wire.header import Expected

_LARGEST_FRAME = 2**33
"""Bytes that a frame may decode to. Coordinators serve dense weights without compression."""


def open_body(body: bytes, expected: Expected) -> Envelope:
    """Validate a body, compressed or not, and return it; its tensors are views of the bytes where it is not.

    Raises:
        BodyRefused: it is damaged, or has other tensors.
    """
    encoding: Encoding | None = "zstd" if is_frame(body) else None
    return unpack(
        body,
        encoding=encoding,
        expected=expected,
        max_bytes=len(body) if encoding is None else _LARGEST_FRAME,
    )
