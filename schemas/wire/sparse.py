"""Sparse values: their selection, and the canonical encoding of their positions.

Positions are a bitmap, or the gaps between them as variable-length integers (LEB128), whichever is shorter.
A gap counts omitted values, so that unsorted or repeated positions have no encoding.
"""

from __future__ import annotations

from math import ceil
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from schemas.wire.errors import SparseIndex

Mask = NDArray[np.bool_]
Octets = NDArray[np.uint8]

BITMAP, GAPS = 0, 1
_LONGEST_VARINT = 5  # 35 bits: beyond the size of any tensor


class PositionStream(Protocol):
    """A source of encoded positions."""

    def peek(self, count: int) -> NDArray[Any]: ...

    def skip(self, count: int) -> None: ...


def kept_count(size: int, density: float) -> int:
    """Return the number of values sent at a density, at least one."""
    return min(size, max(1, ceil(density * size)))


def max_position_bytes(size: int, sent_count: int | None = None) -> int:
    """Return the largest size in bytes of the positions in a tensor, or of `sent_count` positions.

    A gap of 128 or more takes a second byte; the number of omitted values limits the number of such gaps.
    """
    if sent_count is None:
        return 1 + _bitmap_bytes(size)
    lengths = int(_lengths(np.array([sent_count]))[0]) + sent_count
    lengths += sum(min(sent_count, size - sent_count >> 7 * more) for more in range(1, _LONGEST_VARINT))
    return 1 + min(_bitmap_bytes(size), lengths)


def largest(scores: NDArray[np.float32], count: int) -> Mask:
    """Mark the `count` largest scores (n,); ties go to the first."""
    if count >= scores.size:
        return np.ones(scores.size, bool)
    limit = np.partition(scores, scores.size - count)[scores.size - count]
    mask = scores > limit
    # Ties go to the first, so that equal scores give equal marks.
    mask[np.flatnonzero(scores == limit)[: count - np.count_nonzero(mask)]] = True
    return np.asarray(mask)


def write_places(mask: Mask) -> Octets:
    """Encode the marked positions of a tensor: one byte for the form, then a bitmap or count and gaps."""
    if _gaps_are_shorter(mask):
        places = np.flatnonzero(mask)
        coded = _varints(np.concatenate([[places.size], _gaps(places)]))
        return np.concatenate([np.array([GAPS], np.uint8), coded])
    return np.concatenate([np.array([BITMAP], np.uint8), np.packbits(mask, bitorder="little")])


def read_places(stream: PositionStream, size: int) -> Mask:
    """Decode the marked positions of a tensor of `size` values: (size,).

    Raises:
        SparseIndex: truncated, out of range, or not canonical.
    """
    form = stream.peek(1)
    stream.skip(1)
    if form.size and form[0] == BITMAP:
        return _read_bitmap(stream, size)
    if form.size and form[0] == GAPS:
        return _read_gaps(stream, size)
    raise SparseIndex("the positions of a tensor have an unknown form; write a bitmap or gaps")


def _read_bitmap(stream: PositionStream, size: int) -> Mask:
    raw = stream.peek(_bitmap_bytes(size))
    if raw.size < _bitmap_bytes(size):
        raise SparseIndex("a bitmap is truncated")
    stream.skip(raw.size)
    bits = np.unpackbits(raw, bitorder="little")
    if bits[size:].any():
        raise SparseIndex("a bitmap marks a position beyond the tensor")
    mask = bits[:size].view(np.bool_)
    # One form for each set of positions, so that equal updates have equal bytes.
    if _gaps_are_shorter(mask):
        raise SparseIndex("a bitmap is used where gaps are shorter")
    return mask


def _read_gaps(stream: PositionStream, size: int) -> Mask:
    """Decode gaps, reading no more bytes than a bitmap has."""
    head, length = _read_varints(stream.peek(_LONGEST_VARINT), 1)
    stream.skip(length)
    count = int(head[0])
    limit = _bitmap_bytes(size) - 1 - length
    # A bitmap would not be longer then, and only the shorter form is canonical.
    if count > limit:
        raise SparseIndex("gaps are used where a bitmap is not longer")
    gaps, length = _read_varints(stream.peek(limit), count)
    stream.skip(length)
    places = np.cumsum(gaps + 1) - 1
    if places.size and places[-1] >= size:
        raise SparseIndex("a position is beyond the tensor")
    mask = np.zeros(size, bool)
    mask[places] = True
    return mask


def _bitmap_bytes(size: int) -> int:
    return (size + 7) // 8


def _gaps(places: NDArray[np.int64]) -> NDArray[np.int64]:
    return np.diff(places, prepend=-1) - 1


def _gaps_are_shorter(mask: Mask) -> bool:
    """Whether count and gaps take fewer bytes than a bitmap."""
    bitmap, count = _bitmap_bytes(mask.size), int(np.count_nonzero(mask))
    if count >= bitmap:
        return False
    return int(_lengths(np.append(_gaps(np.flatnonzero(mask)), count)).sum()) < bitmap


def _lengths(numbers: NDArray[np.int64]) -> NDArray[np.int64]:
    lengths = np.ones(numbers.size, np.int64)
    for more in range(1, _LONGEST_VARINT):
        lengths += numbers >= 1 << 7 * more
    return lengths


def _varints(numbers: NDArray[np.int64]) -> Octets:
    """Encode numbers as LEB128: seven bits per byte, lowest first, top bit set except in the last byte."""
    lengths = _lengths(numbers)
    ends = np.cumsum(lengths)
    coded = np.zeros(int(ends[-1]), np.uint8)
    for place in range(int(lengths.max())):
        has = lengths > place
        more = (lengths[has] > place + 1).astype(np.uint8) << 7
        coded[ends[has] - lengths[has] + place] = (numbers[has] >> 7 * place & 0x7F).astype(np.uint8) | more
    return coded


def _read_varints(raw: Octets, count: int) -> tuple[NDArray[np.int64], int]:
    """Decode `count` numbers from the start of `raw`; return them and their size in bytes."""
    ends = np.flatnonzero(raw < 0x80)[:count]
    if ends.size < count:
        raise SparseIndex("a list of gaps is truncated, or longer than a bitmap")
    if not count:
        return np.empty(0, np.int64), 0
    begins = np.concatenate([[0], ends[:-1] + 1])
    lengths = ends - begins + 1
    if lengths.max() > _LONGEST_VARINT:
        raise SparseIndex("a gap is longer than any tensor")
    if ((raw[ends] == 0) & (lengths > 1)).any():
        raise SparseIndex("a number has more bytes than it needs")
    numbers = np.zeros(count, np.int64)
    for place in range(int(lengths.max())):
        has = lengths > place
        numbers[has] |= (raw[begins[has] + place] & 0x7F).astype(np.int64) << 7 * place
    return numbers, int(ends[-1]) + 1
