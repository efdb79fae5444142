"""The safetensors header, validated before any tensor is loaded.

Format: 8 bytes little-endian length, that many bytes of JSON {name: {dtype, shape, data_offsets}}, data.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from math import prod
from typing import BinaryIO, cast

from schemas.wire.errors import TensorDtype, TensorHeader, TensorLayout, TensorSchema
from schemas.wire.strict_json import MalformedJson, loads

HEADER_LIMIT = 2**20
"""Largest header of any body, in bytes."""

METADATA_LIMIT = 2**16
"""Largest metadata of a header, in bytes."""

LENGTH_BYTES = 8
_METADATA = "__metadata__"
_JSON_MARKS = (b",", b"[", b"{")  # each begins one JSON value, except the first of an array or object
_ENTRY_MARKS = 6  # of an entry without its shape

ITEM_BYTES = {"F32": 4, "F16": 2, "I32": 4, "U8": 1}
DENSE = frozenset({"F32", "F16"})


@dataclass(frozen=True, slots=True)
class Slot:
    """An expected tensor: its shape (None = any extent), its dtypes, and whether it is optional.

    The values of a `coded` tensor are validated by its decoder.
    """

    shape: tuple[int | None, ...]
    dtypes: Collection[str] = DENSE
    optional: bool = False
    coded: bool = False


Expected = Mapping[str, Slot]


@dataclass(frozen=True, slots=True)
class Entry:
    """One tensor of a validated header; `begin` and `end` are positions in the file."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int
    coded: bool


@dataclass(frozen=True, slots=True)
class Header:
    """A validated header: entries in data order, and the free metadata."""

    entries: tuple[Entry, ...]
    metadata: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class HeaderLimits:
    """The largest header of a body of some tensors.

    Attributes:
        size: in bytes; a longer header is not read.
        marks: commas and opening brackets, which bound the number of JSON values; more are not parsed.
    """

    size: int
    marks: int


def header_limits(expected: Expected, *, max_bytes: int) -> HeaderLimits:
    """Return the limits of a body of at most `max_bytes`: what `write_header` needs for all tensors, and
    METADATA_LIMIT for metadata and white space.
    """
    size = marks = METADATA_LIMIT
    for name, slot in expected.items():
        shape = tuple(max_bytes if extent is None else extent for extent in slot.shape)
        size += len(_entry_text(name, max(slot.dtypes, key=len), shape, max_bytes, max_bytes)) + 1
        marks += _ENTRY_MARKS + len(shape)
    return HeaderLimits(min(size, HEADER_LIMIT), marks)


def write_header(tensors: Mapping[str, tuple[str, tuple[int, ...]]], metadata: Mapping[str, str]) -> bytes:
    """Return the header of tensors {name: (dtype, shape)} whose data follow in this order."""
    entries = [f'"{_METADATA}":{json.dumps(dict(metadata), separators=(",", ":"))}']
    position = 0
    for name, (dtype, shape) in tensors.items():
        end = position + prod(shape) * ITEM_BYTES[dtype]
        entries.append(_entry_text(name, dtype, shape, position, end))
        position = end
    text = f"{{{','.join(entries)}}}".encode()
    text += b" " * (-len(text) % 8)  # the format aligns data to 8 bytes
    return len(text).to_bytes(LENGTH_BYTES, "little") + text


def least_header_bytes(tensors: int) -> int:
    """Return a lower bound of the header of a number of tensors, for a check before they are laid out."""
    return tensors * len(_entry_text("b0.q.P", "F32", (1,), 0, 4))


def _entry_text(name: str, dtype: str, shape: tuple[int, ...], begin: int, end: int) -> str:
    extents = ",".join(map(str, shape))
    return f'{json.dumps(name)}:{{"dtype":"{dtype}","shape":[{extents}],"data_offsets":[{begin},{end}]}}'


def read_own_head(head: bytes) -> tuple[dict[str, tuple[int, ...]], Mapping[str, str]]:
    """Parse a header of `write_header`: names and shapes in data order, and the metadata."""
    raw = json.loads(head[LENGTH_BYTES:])
    metadata = raw.pop(_METADATA)
    return {name: tuple(entry["shape"]) for name, entry in raw.items()}, metadata


def free_slots(source: BinaryIO, size: int) -> dict[str, Slot]:
    """Return the tensors that the header of a file of `size` bytes names, as float32 of any shape.

    For `read_header` of a file whose layout is not known otherwise.

    Raises:
        TensorHeader, TensorSchema: it is malformed.
    """
    raw, _ = _raw_entries(source, size, HeaderLimits(HEADER_LIMIT, HEADER_LIMIT))
    slots = {}
    for name, entry in raw.items():
        if name != _METADATA:
            shape = entry["shape"]
            if not isinstance(shape, list):
                raise TensorSchema(f"{name} has no shape")
            slots[name] = Slot((None,) * len(shape), frozenset({"F32"}))
    return slots


def read_header(
    source: BinaryIO, size: int, expected: Expected, coded: Expected | None = None, *, limits: HeaderLimits
) -> Header:
    """Read and validate the header of a file of `size` bytes, positioned at its start.

    A body with a tensor that appears only in `coded` is validated against `coded`.

    Raises:
        TensorHeader, TensorSchema, TensorDtype, TensorLayout: in this order of precedence.
    """
    raw, data_begin = _raw_entries(source, size, limits)
    metadata = _metadata(raw.pop(_METADATA, {}))
    # Streams have names that no layout has: one of them decides what the body is.
    if coded is not None and raw.keys() & (coded.keys() - expected.keys()):
        expected = coded
    _check_names(raw, expected)
    for name, entry in raw.items():
        _check_shape(name, entry["shape"], expected[name])
    for name, entry in raw.items():
        if entry["dtype"] not in expected[name].dtypes or entry["dtype"] not in ITEM_BYTES:
            raise TensorDtype(
                f"{name} has another dtype; allowed are {', '.join(sorted(expected[name].dtypes))}"
            )
    entries = sorted(
        (_entry(name, entry, data_begin, expected[name]) for name, entry in raw.items()),
        key=lambda e: (e.begin, e.end),
    )
    _check_layout(entries, data_begin, size)
    return Header(tuple(entries), metadata)


def is_too_long(beginning: bytes, limits: HeaderLimits) -> bool:
    return int.from_bytes(beginning[:LENGTH_BYTES], "little") > limits.size


def _raw_entries(
    source: BinaryIO, size: int, limits: HeaderLimits
) -> tuple[dict[str, dict[str, object]], int]:
    length_field = source.read(LENGTH_BYTES)
    if len(length_field) < LENGTH_BYTES:
        raise TensorHeader("the body is shorter than a header")
    if is_too_long(length_field, limits):
        raise TensorHeader(
            f"the header is longer than {limits.size} bytes; send the tensors of the layout alone"
        )
    length = int.from_bytes(length_field, "little")
    if LENGTH_BYTES + length > size:
        raise TensorHeader("the header is longer than the body")
    text = source.read(length)
    # The format requires it.
    if not text.startswith(b"{"):
        raise TensorHeader("the header does not begin with an opening brace")
    # Counted before the text is parsed: a few bytes of JSON may become many objects.
    if sum(map(text.count, _JSON_MARKS)) > limits.marks:
        raise TensorHeader("the header has more JSON values than the tensors of the layout need")
    try:
        raw = loads(text)
    except MalformedJson as error:
        raise TensorHeader("the header is not strict JSON") from error
    if not isinstance(raw, dict):
        raise TensorHeader("the header is not an object")
    for name, entry in raw.items():
        if not isinstance(entry, dict):
            raise TensorHeader("an entry is not an object")
        if name != _METADATA and entry.keys() != {"dtype", "shape", "data_offsets"}:
            raise TensorHeader("an entry has other members than dtype, shape and data_offsets")
        if name != _METADATA and not isinstance(entry["dtype"], str):
            raise TensorHeader("a dtype is not a string")
    return raw, LENGTH_BYTES + length


def _metadata(raw: object) -> Mapping[str, str]:
    if not isinstance(raw, dict) or not all(isinstance(value, str) for value in raw.values()):
        raise TensorHeader("__metadata__ is not an object of strings")
    if sum(len(key) + len(value) for key, value in raw.items()) > METADATA_LIMIT:
        raise TensorHeader(f"__metadata__ is longer than {METADATA_LIMIT} bytes")
    return cast("dict[str, str]", raw)


def _check_names(raw: Mapping[str, object], expected: Expected) -> None:
    unknown = len(raw.keys() - expected.keys())
    missing = sorted(name for name, slot in expected.items() if not slot.optional and name not in raw)
    if unknown or missing:
        shown = ", ".join(missing[:5]) + (", ..." if len(missing) > 5 else "")
        raise TensorSchema(
            f"{unknown} unknown tensors; {len(missing)} missing tensors{': ' if shown else ''}{shown}"
        )


def _check_shape(name: str, shape: object, slot: Slot) -> None:
    fits = (
        isinstance(shape, list)
        and len(shape) == len(slot.shape)
        # `bool` is a subclass of `int`.
        and all(type(extent) is int and 0 <= extent < 2**40 for extent in shape)
        and all(limit is None or extent == limit for extent, limit in zip(shape, slot.shape, strict=True))
    )
    if not fits:
        limit = ["any" if extent is None else extent for extent in slot.shape]
        raise TensorSchema(f"{name} must have the shape {limit}")


def _entry(name: str, raw: Mapping[str, object], data_begin: int, slot: Slot) -> Entry:
    offsets = raw["data_offsets"]
    if not isinstance(offsets, list) or len(offsets) != 2 or not all(type(o) is int for o in offsets):
        raise TensorLayout(f"{name} has malformed data_offsets")
    begin, end = offsets
    shape = tuple(cast("list[int]", raw["shape"]))
    dtype = cast("str", raw["dtype"])
    # Checked against the shape, so that no tensor reads the bytes of another one.
    if begin < 0 or end - begin != prod(shape) * ITEM_BYTES[dtype]:
        raise TensorLayout(f"{name}: data_offsets do not match the shape")
    return Entry(name, dtype, shape, data_begin + begin, data_begin + end, slot.coded)


def _check_layout(entries: list[Entry], data_begin: int, size: int) -> None:
    position = data_begin
    for entry in entries:
        if entry.begin != position:
            raise TensorLayout(f"{entry.name} overlaps its neighbour or leaves a gap")
        position = entry.end
    if position != size:
        raise TensorLayout("the body does not end with its last tensor")
