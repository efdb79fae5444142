"""One zstd frame in, plain bytes out, in bounded memory. Knows nothing of tensors.

The library's one-shot call ignores its own limit when the frame states a size, and its stream reader takes a
cut-off frame for a whole one; so the frame is fed in small pieces, and its end, its checksum and what follows
it are checked here.
"""

from __future__ import annotations

from typing import BinaryIO, Protocol

import zstandard

from schemas.wire.refusals import (
    CodecCorrupt,
    CodecTrailing,
    CodecTruncated,
    CodecWindow,
    DecompressedTooLarge,
)

WINDOW_LIMIT = 8 * 2**20
"""Largest window in bytes, as RFC 9659 sets it for HTTP."""

# A block of four bytes can stand for 128 KiB, so the smallest piece decodes to a MiB at most, the largest to
# sixteen. Pieces begin small, and are small again behind one that unfolded to much: to have the kernel clear
# so much memory at once costs more than to decode it.
_SMALLEST_PIECE = 32
_LARGEST_PIECE = 512
_MUCH = 2**18
_FRAME_MAGIC = b"\x28\xb5\x2f\xfd"
_LARGEST_FRAME_HEADER = 18


class Sink(Protocol):
    """Where decoded bytes go."""

    def write(self, plain: bytes, /) -> int:
        """Take some."""


def compress(body: bytes) -> bytes:
    """Write one frame with content size and checksum, level 1: higher levels gain nothing on floats."""
    return zstandard.ZstdCompressor(level=1, write_checksum=True, write_content_size=True).compress(body)


def is_frame(body: bytes) -> bool:
    """Say whether bytes begin as a zstd frame does; no tensor body does: its header would be too long."""
    return body.startswith(_FRAME_MAGIC)


def decompress(source: BinaryIO, sink: Sink, *, max_bytes: int) -> int:
    """Decode one frame from `source` into `sink` and give the number of bytes written.

    Raises:
        DecompressedTooLarge, CodecWindow, CodecTruncated, CodecTrailing, CodecCorrupt: see refusals.
    """
    head = source.read(_LARGEST_FRAME_HEADER)
    _check_frame(head, max_bytes)
    decoder = zstandard.ZstdDecompressor(max_window_size=WINDOW_LIMIT).decompressobj(read_across_frames=False)
    written, piece, size = 0, head, _SMALLEST_PIECE
    while piece:
        try:
            plain = decoder.decompress(piece)
        except zstandard.ZstdError as error:
            raise CodecCorrupt("the frame does not decode or its checksum is wrong") from error
        written += len(plain)
        if written > max_bytes:
            raise DecompressedTooLarge(f"more than {max_bytes} bytes")
        sink.write(plain)
        if decoder.eof:
            break
        size = _SMALLEST_PIECE if len(plain) >= _MUCH else min(2 * size, _LARGEST_PIECE)
        piece = source.read(size)
    if not decoder.eof:
        raise CodecTruncated("the frame has no end")
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
        raise CodecTruncated("the frame header is cut off") from error
    if parameters.content_size not in (zstandard.CONTENTSIZE_UNKNOWN, zstandard.CONTENTSIZE_ERROR) and (
        parameters.content_size > max_bytes
    ):
        raise DecompressedTooLarge(f"the frame announces more than {max_bytes} bytes")
    if parameters.window_size > WINDOW_LIMIT:
        raise CodecWindow("the window is larger than 8 MiB")
    if parameters.dict_id:
        raise CodecTrailing("frames with a dictionary are not accepted")
    if not parameters.has_checksum:
        raise CodecCorrupt("the frame has no checksum")
