"""zstd in bounded memory: exactly one frame per body.

The library's one-shot call ignores its limit when the frame states a size, and its stream reader accepts a
truncated frame. So the frame is fed in small pieces, and its end, checksum and trailing bytes are checked.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import BinaryIO, Protocol

import zstandard

from schemas.wire.errors import (
    CodecCorrupt,
    CodecTrailing,
    CodecTruncated,
    CodecWindow,
    DecompressedTooLarge,
)

WINDOW_LIMIT = 8 * 2**20
"""Largest window in bytes, as RFC 9659 sets it for HTTP."""

# Four bytes can decode to 128 KiB, so the smallest piece decodes to at most 1 MiB, the largest to 16. After a
# large result the pieces shrink again: zeroing that much memory at once costs more than decoding it.
_SMALLEST_PIECE = 32
_LARGEST_PIECE = 512
_MUCH = 2**18
_FRAME_MAGIC = b"\x28\xb5\x2f\xfd"
_LARGEST_FRAME_HEADER = 18


class Sink(Protocol):
    """A destination of decoded bytes."""

    def write(self, plain: bytes, /) -> int: ...


def compress(body: bytes) -> bytes:
    """Compress into one frame with size and checksum, at level 1: higher levels gain nothing on floats."""
    return _compressor().compress(body)


def compress_pieces(pieces: Iterable[bytes], size: int) -> bytes:
    """Compress pieces of `size` bytes in all, as `compress` does, without joining them."""
    frame = _compressor().compressobj(size=size)
    return b"".join([*(frame.compress(piece) for piece in pieces), frame.flush()])


def _compressor() -> zstandard.ZstdCompressor:
    return zstandard.ZstdCompressor(level=1, write_checksum=True, write_content_size=True)


def is_frame(body: bytes) -> bool:
    """Whether bytes begin with a zstd frame; as a tensor body, they would have too long a header."""
    return body.startswith(_FRAME_MAGIC)


def decompress(source: BinaryIO, sink: Sink, *, max_bytes: int) -> int:
    """Decode one frame from `source` into `sink` and return the number of bytes written.

    Raises:
        DecompressedTooLarge, CodecWindow, CodecTruncated, CodecTrailing, CodecCorrupt: see refusals.
    """
    head = source.read(_LARGEST_FRAME_HEADER)
    _check_frame(head, max_bytes)
    # The window is bounded, since its memory is allocated before any content.
    decoder = zstandard.ZstdDecompressor(max_window_size=WINDOW_LIMIT).decompressobj(read_across_frames=False)
    written, piece, size = 0, head, _SMALLEST_PIECE
    while piece:
        try:
            plain = decoder.decompress(piece)
        except zstandard.ZstdError as error:
            raise CodecCorrupt("the frame cannot be decoded, or its checksum is wrong") from error
        written += len(plain)
        if written > max_bytes:
            raise DecompressedTooLarge(f"more than {max_bytes} bytes")
        sink.write(plain)
        if decoder.eof:
            break
        size = _SMALLEST_PIECE if len(plain) >= _MUCH else min(2 * size, _LARGEST_PIECE)
        piece = source.read(size)
    if not decoder.eof:
        raise CodecTruncated("the frame is truncated; send the complete body")
    if decoder.unused_data or source.read(1):
        raise CodecTrailing("bytes follow the frame")
    return written


def _check_frame(head: bytes, max_bytes: int) -> None:
    if len(head) < len(_FRAME_MAGIC):
        raise CodecTruncated("the body is shorter than a frame header")
    if not head.startswith(_FRAME_MAGIC):
        raise CodecTrailing("the body does not begin with a zstd frame")
    try:
        parameters = zstandard.get_frame_parameters(head)
    except zstandard.ZstdError as error:
        raise CodecTruncated("the frame header is truncated") from error
    if parameters.content_size not in (zstandard.CONTENTSIZE_UNKNOWN, zstandard.CONTENTSIZE_ERROR) and (
        parameters.content_size > max_bytes
    ):
        raise DecompressedTooLarge(f"the frame announces more than {max_bytes} bytes")
    if parameters.window_size > WINDOW_LIMIT:
        raise CodecWindow("the window is larger than 8 MiB")
    if parameters.dict_id:
        raise CodecTrailing("frames with a dictionary are not accepted")
    # Required: a damaged frame may decode to other values.
    if not parameters.has_checksum:
        raise CodecCorrupt("the frame has no checksum")
