"""One zstd frame in, plain bytes out, in bounded memory. Knows nothing of tensors.

The library's one-shot call ignores its own limit when the frame states a size, and its stream reader takes a
cut-off frame for a whole one; so the frame is fed in small pieces, and its end, its checksum and what follows
it are checked here.
"""

from __future__ import annotations

from typing import BinaryIO

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

# A block of four bytes can stand for 128 KiB, so this many bytes decode to 16 MiB at most.
_PIECE = 512
_FRAME_MAGIC = b"\x28\xb5\x2f\xfd"
_LARGEST_FRAME_HEADER = 18


def compress(body: bytes) -> bytes:
    """Write one frame with content size and checksum, level 1: higher levels gain nothing on floats."""
    return zstandard.ZstdCompressor(level=1, write_checksum=True, write_content_size=True).compress(body)


def is_frame(body: bytes) -> bool:
    """Say whether bytes begin as a zstd frame does; no tensor body does: its header would be too long."""
    return body.startswith(_FRAME_MAGIC)


def decompress(source: BinaryIO, sink: BinaryIO, *, max_bytes: int) -> int:
    """Decode one frame from `source` into `sink` and give the number of bytes written.

    Raises:
        DecompressedTooLarge, CodecWindow, CodecTruncated, CodecTrailing, CodecCorrupt: see refusals.
    """
    head = source.read(_LARGEST_FRAME_HEADER)
    _check_frame(head, max_bytes)
    decoder = zstandard.ZstdDecompressor(max_window_size=WINDOW_LIMIT).decompressobj(read_across_frames=False)
    written, piece = 0, head
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
        piece = source.read(_PIECE)
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
