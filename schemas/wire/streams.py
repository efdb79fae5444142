"""Put all tensors of an update into a few streams by a recipe, and take them out again, exactly.

Streams instead of tensors: a header of names, shapes and offsets would be longer than the values of a small
adapter in four bits. Knows neither references nor manifests: differences go in and come out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from math import prod
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from schemas.maths.adapter import Layout
from schemas.maths.seeded_random import Key
from schemas.messages.recipes import Recipe
from schemas.wire.header import Expected, Slot
from schemas.wire.quantise import LEVELS, Floats, code_bytes, decode_values, encode_values, scale_count
from schemas.wire.refusals import BodyRefused, QuantScale, SparseIndex, StreamLength
from schemas.wire.sparse import Mask, kept_count, largest, longest, read_places, write_places

CODES, SCALES, POSITIONS = "codes", "scales", "positions"
_DTYPES: Final = {CODES: np.uint8, SCALES: np.float16, POSITIONS: np.uint8}
Stream = NDArray[np.uint8] | NDArray[np.float16]


class Streams(Protocol):
    """Where streams are read from: a checked body, or what `encode` gave."""

    def length(self, name: str) -> int:
        """Say how many items a stream has, 0 if it is not there."""

    def part(self, name: str, begin: int, count: int) -> Stream:
        """Read items of a stream from `begin` on, fewer at its end."""


@dataclass(frozen=True, slots=True)
class Coded:
    """The streams of one update; those without items are left out."""

    tensors: dict[str, Stream]

    def length(self, name: str) -> int:
        """Say how many items a stream has, 0 if it is not there."""
        return self.tensors[name].size if name in self.tensors else 0

    def part(self, name: str, begin: int, count: int) -> Stream:
        """Read items of a stream from `begin` on, fewer at its end."""
        return self.tensors[name][begin : begin + count]


def stream_slots() -> Expected:
    """Expect streams in place of tensors; how long each is and what is in it `decode` judges."""
    octets, halves = frozenset({"U8"}), frozenset({"F16"})
    return {
        CODES: Slot((None,), octets, optional=True, coded=True),
        POSITIONS: Slot((None,), octets, optional=True, coded=True),
        SCALES: Slot((None,), halves, optional=True, coded=True),
    }


def bound(layout: Layout, recipe: Recipe) -> int:
    """Say how many bytes the streams of any update of a layout have at most."""
    lengths = _longest(layout, recipe)
    return lengths[CODES] + 2 * lengths[SCALES] + lengths[POSITIONS]


def encode(
    values: Mapping[str, Floats],
    recipe: Recipe,
    *key: Key,
    importance: Mapping[str, Floats] | None = None,
    keep: Mapping[str, Mask] | None = None,
) -> Coded:
    """Write tensors, in the order of their names; the same values and key give the same streams.

    Each is asked for once, so that a mapping may read them one at a time.

    Of each tensor as many values are kept as the density says: those of the largest absolute value, or of the
    largest `importance`. `keep` marks them instead, and may prefer some tensors to others.

    Raises:
        NotEncodable: a value is not finite, or larger than the recipe's format can say.
        ValueError: `keep` marks more values than the density lets travel.
    """
    parts: dict[str, list[Stream]] = {name: [] for name in _DTYPES}
    allowed = 0
    for name in sorted(values):
        flat = np.ascontiguousarray(values[name], np.float32).reshape(-1)
        allowed += kept_count(flat.size, recipe.density)
        if recipe.density < 1:
            scores = np.abs(flat) if importance is None else importance[name].reshape(-1)
            mask = largest(scores, kept_count(flat.size, recipe.density)) if keep is None else keep[name]
            mask = mask.reshape(-1) & (flat != 0)  # what is not sent is 0 in any case
            parts[POSITIONS].append(write_places(mask))
            flat = flat[mask]
        allowed -= flat.size
        codes, scales = encode_values(flat, recipe, *key, name)
        parts[CODES].append(codes)
        parts[SCALES].append(scales)
    if allowed < 0:
        raise ValueError(f"{-allowed} values more are marked than density {recipe.density:g} lets travel")
    joined: dict[str, Stream] = {}
    for name, some in parts.items():
        if any(part.size for part in some):
            joined[name] = np.concatenate(some).astype(_DTYPES[name], copy=False)
    return Coded(joined)


def decode(streams: Streams, layout: Layout, recipe: Recipe) -> Iterator[tuple[str, Floats]]:
    """Read every tensor of a layout, in its order and shape; nothing is allocated but what the layout says.

    Whatever is wrong is told at the end at the latest, so the tensors are worth nothing until then.

    Raises:
        SparseIndex, StreamLength, QuantScale, QuantCode: what is wrong, of the first tensor where it is; of
            streams that are longer than any update's before all tensors.
    """
    limits, misfits = _longest(layout, recipe), _misfits(recipe)
    for name, misfit in misfits.items():
        if streams.length(name) > limits[name]:
            raise misfit(f"{name} has {streams.length(name)} items and may have {limits[name]}")
    positions, codes, scales = (_Reader(streams, name, misfit) for name, misfit in misfits.items())
    allowed = _kept(map(prod, layout.values()), recipe)
    for name, shape in layout.items():
        size = prod(shape)
        mask = read_places(positions, size) if recipe.density < 1 else None
        count = int(np.count_nonzero(mask)) if mask is not None else size
        allowed -= count
        if allowed < 0:
            raise SparseIndex(f"more values are marked than density {recipe.density:g} lets travel")
        raw = codes.take(code_bytes(count, recipe.values))
        own = scales.take(scale_count(count, recipe))
        found = decode_values(raw.view(np.uint8), own.view(np.float16), count, recipe)
        if mask is not None:
            values = np.zeros(size, np.float32)
            values[mask] = found
            found = values
        yield name, found.reshape(shape)
    for reader in (positions, codes, scales):
        reader.check_end()


class _Reader:
    """Goes through one stream from its beginning to its end."""

    def __init__(self, streams: Streams, name: str, misfit: type[BodyRefused]) -> None:
        self._streams = streams
        self._name = name
        self._misfit = misfit
        self._at = 0

    def peek(self, count: int) -> Stream:
        """Give the next items, fewer at the end."""
        left = self._streams.length(self._name) - self._at
        if min(count, left) <= 0:
            return np.empty(0, _DTYPES[self._name])
        return self._streams.part(self._name, self._at, min(count, left))

    def skip(self, count: int) -> None:
        """Go on behind them."""
        self._at += count

    def take(self, count: int) -> Stream:
        """Give exactly so many items, and go on behind them."""
        items = self.peek(count)
        if items.size < count:
            raise self._misfit(f"{self._name} ends early")
        self.skip(count)
        return items

    def check_end(self) -> None:
        """Make sure that nothing is left."""
        if self._at < self._streams.length(self._name):
            raise self._misfit(f"{self._name} goes on behind the last value")


def _misfits(recipe: Recipe) -> dict[str, type[BodyRefused]]:
    """Say what is wrong where a stream has too few or too many items, in the order of the streams.

    Where a part of the values travels, codes that are not as many as the places are the places' fault.
    """
    is_sparse = recipe.density < 1
    return {POSITIONS: SparseIndex, CODES: SparseIndex if is_sparse else StreamLength, SCALES: QuantScale}


def _kept(sizes: Iterable[int], recipe: Recipe) -> int:
    """Say how many values of tensors of these sizes may travel together."""
    return sum(kept_count(size, recipe.density) for size in sizes)


def _longest(layout: Layout, recipe: Recipe) -> dict[str, int]:
    """Say how many items each stream has at most; marked values may be spread over the tensors at will."""
    sizes = [prod(shape) for shape in layout.values()]
    if recipe.density == 1:
        codes = sum(code_bytes(size, recipe.values) for size in sizes)
        return {CODES: codes, SCALES: sum(scale_count(size, recipe) for size in sizes), POSITIONS: 0}
    kept = _kept(sizes, recipe)  # every tensor may have a last byte and a last block that are not full
    return {
        CODES: code_bytes(kept, recipe.values) + len(sizes),
        SCALES: scale_count(kept, recipe) + (len(sizes) if recipe.values in LEVELS else 0),
        POSITIONS: sum(longest(size) for size in sizes),
    }
