"""Which values of a tensor travel, and how their places are written, in one way only. Knows no values' bits.

Places are a bitmap, or the gaps between them as variable-length integers (LEB128), whichever is shorter.
A gap counts what is left out, so that places which are unsorted or twice there cannot be written.
"""

from __future__ import annotations

from math import ceil
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from schemas.wire.refusals import SparseIndex

Mask = NDArray[np.bool_]
Octets = NDArray[np.uint8]

BITMAP, GAPS = 0, 1
_LONGEST_VARINT = 5  # 35 bits: more than any tensor has places


class PositionStream(Protocol):
    """What places are read from."""

    def peek(self, count: int) -> NDArray[Any]:
        """Give the next bytes, fewer at the end."""

    def skip(self, count: int) -> None:
        """Go on behind them."""


def kept_count(size: int, density: float) -> int:
    """Say how many of a tensor's values a density lets travel, one at least."""
    return min(size, max(1, ceil(density * size)))


def longest(size: int, kept: int | None = None) -> int:
    """Say how many bytes the places in a tensor can have at most, those of `kept` values if that is known.

    A gap of 128 or more has a second byte, and there are only so many of these in what is left out.
    """
    if kept is None:
        return 1 + _bitmap_bytes(size)
    lengths = int(_lengths(np.array([kept]))[0]) + kept
    lengths += sum(min(kept, size - kept >> 7 * more) for more in range(1, _LONGEST_VARINT))
    return 1 + min(_bitmap_bytes(size), lengths)


def largest(scores: NDArray[np.float32], count: int) -> Mask:
    """Mark the `count` largest scores (n,); of equal ones the first."""
    if count >= scores.size:
        return np.ones(scores.size, bool)
    limit = np.partition(scores, scores.size - count)[scores.size - count]
    mask = scores > limit
    mask[np.flatnonzero(scores == limit)[: count - np.count_nonzero(mask)]] = True
    return np.asarray(mask)


def write_places(mask: Mask) -> Octets:
    """Write which places of a tensor are marked: a byte that says how, then a bitmap or count and gaps."""
    if _gaps_are_shorter(mask):
        places = np.flatnonzero(mask)
        coded = _varints(np.concatenate([[places.size], _gaps(places)]))
        return np.concatenate([np.array([GAPS], np.uint8), coded])
    return np.concatenate([np.array([BITMAP], np.uint8), np.packbits(mask, bitorder="little")])


def read_places(stream: PositionStream, size: int) -> Mask:
    """Read which of a tensor's `size` places are marked: (size,).

    Raises:
        SparseIndex: it is cut off, out of range, or not the one way to write these places.
    """
    form = stream.peek(1)
    stream.skip(1)
    if form.size and form[0] == BITMAP:
        return _read_bitmap(stream, size)
    if form.size and form[0] == GAPS:
        return _read_gaps(stream, size)
    raise SparseIndex("the places of a tensor begin with neither of the two forms")


def _read_bitmap(stream: PositionStream, size: int) -> Mask:
    raw = stream.peek(_bitmap_bytes(size))
    if raw.size < _bitmap_bytes(size):
        raise SparseIndex("a bitmap is cut off")
    stream.skip(raw.size)
    bits = np.unpackbits(raw, bitorder="little")
    if bits[size:].any():
        raise SparseIndex("a bitmap marks a place behind the tensor")
    mask = bits[:size].view(np.bool_)
    if _gaps_are_shorter(mask):
        raise SparseIndex("a bitmap stands where gaps are shorter")
    return mask


def _read_gaps(stream: PositionStream, size: int) -> Mask:
    """Read gaps, of which no more bytes are looked at than a bitmap would have."""
    head, length = _read_varints(stream.peek(_LONGEST_VARINT), 1)
    stream.skip(length)
    count = int(head[0])
    rest = _bitmap_bytes(size) - 1 - length
    if count > rest:
        raise SparseIndex("gaps stand where a bitmap is no longer")
    gaps, length = _read_varints(stream.peek(rest), count)
    stream.skip(length)
    places = np.cumsum(gaps + 1) - 1
    if places.size and places[-1] >= size:
        raise SparseIndex("a place is behind the tensor")
    mask = np.zeros(size, bool)
    mask[places] = True
    return mask


def _bitmap_bytes(size: int) -> int:
    return (size + 7) // 8


def _gaps(places: NDArray[np.int64]) -> NDArray[np.int64]:
    """Count what is left out before each place."""
    return np.diff(places, prepend=-1) - 1


def _gaps_are_shorter(mask: Mask) -> bool:
    """Compare count and gaps with a bitmap; a gap has a byte at least."""
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
    """Write numbers as LEB128: seven bits a byte, lowest first, the top bit set in all bytes but the last."""
    lengths = _lengths(numbers)
    ends = np.cumsum(lengths)
    coded = np.zeros(int(ends[-1]), np.uint8)
    for place in range(int(lengths.max())):
        has = lengths > place
        more = (lengths[has] > place + 1).astype(np.uint8) << 7
        coded[ends[has] - lengths[has] + place] = (numbers[has] >> 7 * place & 0x7F).astype(np.uint8) | more
    return coded


def _read_varints(raw: Octets, count: int) -> tuple[NDArray[np.int64], int]:
    """Read `count` numbers from the beginning of `raw`, and say how many bytes they have."""
    ends = np.flatnonzero(raw < 0x80)[:count]
    if ends.size < count:
        raise SparseIndex("a list of gaps is cut off, or longer than a bitmap")
    if not count:
        return np.empty(0, np.int64), 0
    begins = np.concatenate([[0], ends[:-1] + 1])
    lengths = ends - begins + 1
    if lengths.max() > _LONGEST_VARINT:
        raise SparseIndex("a gap is longer than any tensor")
    if ((raw[ends] == 0) & (lengths > 1)).any():
        raise SparseIndex("a number is written longer than it is")
    numbers = np.zeros(count, np.int64)
    for place in range(int(lengths.max())):
        has = lengths > place
        numbers[has] |= (raw[begins[has] + place] & 0x7F).astype(np.int64) << 7 * place
    return numbers, int(ends[-1]) + 1
