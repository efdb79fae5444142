"""Updates as a few streams: encode all tensors by a recipe, and decode them exactly.

Per-tensor headers would be longer than the values of a small adapter in four bits. References are applied
outside: differences go in and come out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from schemas.maths.adapter import Layout
from schemas.maths.seeded_random import Key
from schemas.messages.recipes import Recipe
from schemas.wire.errors import BodyRefused, QuantScale, SparseIndex, StreamLength
from schemas.wire.header import Expected, Slot
from schemas.wire.quantise import LEVELS, Floats, code_bytes, decode_values, encode_values, scale_count
from schemas.wire.sparse import Mask, kept_count, largest, max_position_bytes, read_places, write_places

CODES, SCALES, POSITIONS = "codes", "scales", "positions"
_DTYPES: Final = {CODES: np.uint8, SCALES: np.float16, POSITIONS: np.uint8}
Stream = NDArray[np.uint8] | NDArray[np.float16]


class Streams(Protocol):
    """A source of streams: a validated body, or the result of `encode`."""

    def length(self, name: str) -> int:
        """Return the number of items of a stream, 0 if absent."""

    def part(self, name: str, begin: int, count: int) -> Stream:
        """Read up to `count` items of a stream from `begin` on."""


@dataclass(frozen=True, slots=True)
class CodedStreams:
    """The streams of one update, without empty ones."""

    tensors: dict[str, Stream]

    def length(self, name: str) -> int:
        return self.tensors[name].size if name in self.tensors else 0

    def part(self, name: str, begin: int, count: int) -> Stream:
        return self.tensors[name][begin : begin + count]


def stream_slots() -> Expected:
    """Return the expected streams; `decode` validates length and content."""
    octets, halves = frozenset({"U8"}), frozenset({"F16"})
    return {
        CODES: Slot((None,), octets, optional=True, coded=True),
        POSITIONS: Slot((None,), octets, optional=True, coded=True),
        SCALES: Slot((None,), halves, optional=True, coded=True),
    }


def bound(layout: Layout, recipe: Recipe) -> int:
    lengths = _longest(layout, recipe)
    return lengths[CODES] + 2 * lengths[SCALES] + lengths[POSITIONS]


def encode(
    values: Mapping[str, Floats],
    recipe: Recipe,
    *key: Key,
    importance: Mapping[str, Floats] | None = None,
    keep: Mapping[str, Mask] | None = None,
) -> CodedStreams:
    """Encode tensors in name order; equal values and key produce equal streams.

    Each tensor is read once, so that a mapping may load one at a time. The density determines the number of
    values sent per tensor: those of the largest absolute value, or of the largest `importance`. `keep` marks
    them explicitly, and may favour some tensors.

    Raises:
        NotEncodable: a value is not finite, or exceeds the range of the format.
        ValueError: `keep` marks more values than the density allows.
    """
    parts: dict[str, list[Stream]] = {name: [] for name in _DTYPES}
    allowed = 0
    # In name order, which is that of every layout.
    for name in sorted(values):
        flat = np.ascontiguousarray(values[name], np.float32).reshape(-1)
        allowed += kept_count(flat.size, recipe.density)
        if recipe.density < 1:
            scores = np.abs(flat) if importance is None else importance[name].reshape(-1)
            mask = largest(scores, kept_count(flat.size, recipe.density)) if keep is None else keep[name]
            mask = mask.reshape(-1) & (flat != 0)  # values that are not sent decode to 0 anyway
            parts[POSITIONS].append(write_places(mask))
            flat = flat[mask]
        allowed -= flat.size
        codes, scales = encode_values(flat, recipe, *key, name)
        parts[CODES].append(codes)
        parts[SCALES].append(scales)
    if allowed < 0:
        raise ValueError(f"{-allowed} more values are marked than density {recipe.density:g} allows")
    return joined(parts)


def joined(parts: Mapping[str, Sequence[Stream]]) -> CodedStreams:
    """Join the parts of each stream, those of one tensor behind those of another."""
    streams: dict[str, Stream] = {}
    for name, chunks in parts.items():
        if any(part.size for part in chunks):
            streams[name] = np.concatenate(chunks).astype(_DTYPES[name], copy=False)
    return CodedStreams(streams)


def decode(streams: Streams, layout: Layout, recipe: Recipe) -> Iterator[tuple[str, Floats]]:
    """Decode every tensor of a layout, in its order and shape; memory is bounded by the layout.

    Some errors are raised only at the end, so the tensors are not valid before the iterator is exhausted.

    Raises:
        SparseIndex, StreamLength, QuantScale, QuantCode: the first fault, in tensor order; oversized streams
            are reported before all tensors.
    """
    limits, misfits = _longest(layout, recipe), _misfits(recipe)
    for name, misfit in misfits.items():
        # Before anything is decoded: a hostile body must not cost more than an honest one.
        if streams.length(name) > limits[name]:
            raise misfit(f"{name} has {streams.length(name)} items; at most {limits[name]} are allowed")
    positions, codes, scales = (_Reader(streams, name, misfit) for name, misfit in misfits.items())
    allowed = _sent_count(map(prod, layout.values()), recipe)
    for name, shape in layout.items():
        size = prod(shape)
        mask = read_places(positions, size) if recipe.density < 1 else None
        count = int(np.count_nonzero(mask)) if mask is not None else size
        allowed -= count
        if allowed < 0:
            raise SparseIndex(f"more values are marked than density {recipe.density:g} allows")
        raw = codes.take(code_bytes(count, recipe.values))
        block_scales = scales.take(scale_count(count, recipe))
        decoded = decode_values(raw.view(np.uint8), block_scales.view(np.float16), count, recipe)
        if mask is not None:
            values = np.zeros(size, np.float32)
            values[mask] = decoded
            decoded = values
        yield name, decoded.reshape(shape)
    for reader in (positions, codes, scales):
        reader.check_end()


class _Reader:
    """A cursor over one stream."""

    def __init__(self, streams: Streams, name: str, misfit: type[BodyRefused]) -> None:
        self._streams = streams
        self._name = name
        self._misfit = misfit
        self._at = 0

    def peek(self, count: int) -> Stream:
        """Return up to `count` of the next items without advancing."""
        remaining = self._streams.length(self._name) - self._at
        if min(count, remaining) <= 0:
            return np.empty(0, _DTYPES[self._name])
        return self._streams.part(self._name, self._at, min(count, remaining))

    def skip(self, count: int) -> None:
        self._at += count

    def take(self, count: int) -> Stream:
        """Return exactly `count` items and advance."""
        items = self.peek(count)
        if items.size < count:
            raise self._misfit(f"{self._name} ends early")
        self.skip(count)
        return items

    def check_end(self) -> None:
        if self._at < self._streams.length(self._name):
            raise self._misfit(f"{self._name} continues after the last value")


def _misfits(recipe: Recipe) -> dict[str, type[BodyRefused]]:
    """Return the error of each stream with too few or too many items, in the order of the streams.

    With a sparse recipe, a mismatch of codes and positions is a fault of the positions.
    """
    is_sparse = recipe.density < 1
    return {POSITIONS: SparseIndex, CODES: SparseIndex if is_sparse else StreamLength, SCALES: QuantScale}


def _sent_count(sizes: Iterable[int], recipe: Recipe) -> int:
    return sum(kept_count(size, recipe.density) for size in sizes)


def _longest(layout: Layout, recipe: Recipe) -> dict[str, int]:
    """Return the largest number of items of each stream; marks may be distributed freely over the tensors."""
    sizes = [prod(shape) for shape in layout.values()]
    if recipe.density == 1:
        codes = sum(code_bytes(size, recipe.values) for size in sizes)
        return {CODES: codes, SCALES: sum(scale_count(size, recipe) for size in sizes), POSITIONS: 0}
    sent_values = _sent_count(sizes, recipe)  # each tensor may end with a partial byte and a partial block
    return {
        CODES: code_bytes(sent_values, recipe.values) + len(sizes),
        SCALES: scale_count(sent_values, recipe) + (len(sizes) if recipe.values in LEVELS else 0),
        POSITIONS: sum(max_position_bytes(size) for size in sizes),
    }
