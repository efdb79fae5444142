"""Tensor bodies: `pack` writes one, `unpack` validates one in bounded memory.

A body is a safetensors file, optionally zstd-compressed, with the manifest as JSON under the metadata key
`tessera`. Its bytes are hostile until `unpack` returns.
"""

from __future__ import annotations

import io
import json
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from math import prod
from typing import BinaryIO, Literal, Self, TypeVar, cast

import numpy as np
from numpy.typing import NDArray
from pydantic import ValidationError

from schemas.maths.adapter import Layout, Shape, factor_of
from schemas.messages.faults import faults_of
from schemas.messages.updates import Manifest
from schemas.wire import compress as zstd
from schemas.wire.errors import DecompressedTooLarge, ManifestRefused
from schemas.wire.finite_values import squares_of
from schemas.wire.header import (
    DENSE,
    ITEM_BYTES,
    LENGTH_BYTES,
    Entry,
    Expected,
    Header,
    HeaderLimits,
    Slot,
    header_limits,
    is_too_long,
    read_header,
    write_header,
)
from schemas.wire.strict_json import MalformedJson, loads

MEDIA_TYPE = "application/vnd.tessera.adapter+safetensors"
MANIFEST_KEY = "tessera"

Encoding = Literal["zstd"]
Array = NDArray[np.float32] | NDArray[np.float16] | NDArray[np.int32] | NDArray[np.uint8]
AnyManifest = TypeVar("AnyManifest", bound=Manifest)

_DTYPES: dict[str, type[np.float32] | type[np.float16] | type[np.int32] | type[np.uint8]] = {
    "F32": np.float32,
    "F16": np.float16,
    "I32": np.int32,
    "U8": np.uint8,
}
_NAMES = {np.dtype(scalar): name for name, scalar in _DTYPES.items()}
_PIECE_BYTES = 2**17  # fits the processor's cache together with its temporaries
_SPOOL_BYTES = 4 * 2**20


def slots(layout: Layout, *, optional: bool = False) -> dict[str, Slot]:
    """Return the expected dense tensors of a layout, float32 or float16."""
    return {name: Slot(shape, DENSE, optional) for name, shape in layout.items()}


def any_rank(layout: Layout) -> Expected:
    """Return the tensors of a layout at any rank; the caller checks that `A` and `B` agree."""
    return {
        name: Slot((None, shape[1]) if factor_of(name) == "A" else (shape[0], None))
        for name, shape in layout.items()
    }


def head(layout: Layout, manifest: Manifest, dtype: Literal["F32", "F16"] = "F32") -> bytes:
    """Return the bytes before the values of a body whose tensors are all of one type, in layout order."""
    return write_header({name: (dtype, shape) for name, shape in layout.items()}, _metadata(manifest))


def pack(tensors: Mapping[str, Array], manifest: Manifest, *, compress: bool = False) -> bytes:
    """Build a body of float32, int32, float16 or uint8 tensors; equal input produces equal bytes.

    Tensors are sorted as in safetensors: by item width, then by name.

    Raises:
        ValueError: a tensor has another dtype.
    """
    # By item width, widest first, so that each tensor is aligned; then by name.
    names = sorted(tensors, key=lambda name: (-tensors[name].dtype.itemsize, name))
    ordered = {name: np.ascontiguousarray(tensors[name]) for name in names}
    described: dict[str, tuple[str, tuple[int, ...]]] = {}
    for name, values in ordered.items():
        if values.dtype not in _NAMES:
            raise ValueError(f"{name} is {values.dtype}; the wire carries float32, int32, float16 and uint8")
        described[name] = (_NAMES[values.dtype], values.shape)
    body = b"".join([write_header(described, _metadata(manifest)), *(v.data for v in ordered.values())])
    return zstd.compress(body) if compress else body


def unpack(
    source: bytes | BinaryIO,
    *,
    encoding: Encoding | None,
    expected: Expected,
    max_bytes: int,
    coded: Expected | None = None,
) -> Envelope:
    """Decode and validate a body: codec, header, names, shapes, dtypes, layout, finite values; in this order.

    `source` is read from its current position to its end. A file must outlive the envelope; bytes are not
    copied, tensors are views of them. `max_bytes` bounds the decoded size, and the expected tensors the size
    of the header. `coded` are streams accepted in place of `expected`. The manifest is validated on access,
    so that tensor errors are reported first.

    Raises:
        BodyRefused: one of its subclasses.
    """
    file: BinaryIO = io.BytesIO(source) if isinstance(source, bytes) else source
    limits = header_limits({**expected, **(coded or {})}, max_bytes=max_bytes)
    if encoding is None:
        plain, start = file, file.tell()
        # Compared before anything is read.
        size = file.seek(0, io.SEEK_END) - start
        if size > max_bytes:
            raise DecompressedTooLarge(f"more than {max_bytes} bytes")
        memory = memoryview(source) if isinstance(source, bytes) else None
        return _checked(plain, start, size, expected, coded, limits=limits, memory=memory)
    spool = cast("BinaryIO", tempfile.SpooledTemporaryFile(max_size=_SPOOL_BYTES))  # noqa: SIM115 (the envelope closes it)
    try:
        size = zstd.decompress(file, _DecodedSink(spool, limits), max_bytes=max_bytes)
        return _checked(spool, 0, size, expected, coded, limits=limits, owned=True)
    except BaseException:
        spool.close()
        raise


class Envelope:
    """A validated body; tensors are read on demand."""

    def __init__(
        self, file: BinaryIO, start: int, header: Header, *, owned: bool, memory: memoryview | None
    ) -> None:
        self._file = file
        self._start = start
        self._header = header
        self._owned = owned
        self._memory = memory
        self._entries = {entry.name: entry for entry in header.entries}
        self._squares: dict[str, float] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Release the decoded copy, if any."""
        if self._owned:
            self._file.close()

    @property
    def names(self) -> Sequence[str]:
        return tuple(self._entries)

    def manifest(self, kind: type[AnyManifest]) -> AnyManifest:
        """Parse the manifest.

        Raises:
            ManifestRefused: it is missing, malformed, or of another kind.
        """
        text = self._header.metadata.get(MANIFEST_KEY)
        if text is None:
            raise ManifestRefused(f"__metadata__ has no key {MANIFEST_KEY}")
        try:
            return kind.model_validate(loads(text.encode("utf-8")))
        except (MalformedJson, UnicodeEncodeError) as error:
            raise ManifestRefused("the manifest is not strict JSON") from error
        except ValidationError as error:
            fields = sorted({path or "manifest" for path, _ in faults_of(error.errors(), kind)})
            raise ManifestRefused(f"wrong or missing: {', '.join(fields[:10])}") from error

    def shape(self, name: str) -> Shape:
        return self._entries[name].shape

    def read(self, name: str) -> Array:
        """Read one tensor in its own dtype."""
        entry = self._entries[name]
        raw = self._bytes(entry.begin, entry.end - entry.begin)
        values = np.require(
            np.frombuffer(raw, _DTYPES[entry.dtype]), requirements="A"
        )  # a header may be of any length
        return cast("Array", values.reshape(entry.shape))

    def length(self, name: str) -> int:
        return prod(self._entries[name].shape) if name in self._entries else 0

    def part(self, name: str, begin: int, count: int) -> NDArray[np.uint8] | NDArray[np.float16]:
        """Read up to `count` items of a stream from `begin` on."""
        entry = self._entries[name]
        width = ITEM_BYTES[entry.dtype]
        at = entry.begin + begin * width
        raw = self._bytes(at, max(0, min(count * width, entry.end - at)))
        return cast("NDArray[np.uint8] | NDArray[np.float16]", np.frombuffer(raw, _DTYPES[entry.dtype]))

    def read_float32(self, name: str) -> NDArray[np.float32]:
        return self.read(name).astype(np.float32, copy=False)

    def norm(self, names: Iterable[str]) -> float:
        """Return the joint L2 norm of these tensors."""
        return float(np.sqrt(sum(self._squares[name] for name in names)))

    def float32_run(self, names: Sequence[str]) -> tuple[int, int] | None:
        """Return the range (begin, end) of contiguous float32 tensors in the decoded body, or None."""
        entries = [self._entries[name] for name in names]
        together = all(left.end == right.begin for left, right in pairwise(entries))
        if not entries or not together or any(entry.dtype != "F32" for entry in entries):
            return None
        return entries[0].begin, entries[-1].end

    def check_finite(self) -> None:
        """Validate every value once, and store the sums of squares.

        Raises:
            TensorNonfinite: NaN, infinity, or more than half denormal values.
        """
        for entry in self._header.entries:
            if not entry.coded:
                self._squares[entry.name] = squares_of(entry.name, self._pieces(entry))

    def _pieces(self, entry: Entry) -> Iterator[Array]:
        for at in range(entry.begin, entry.end, _PIECE_BYTES):
            raw = self._bytes(at, min(_PIECE_BYTES, entry.end - at))
            yield cast("Array", np.frombuffer(raw, _DTYPES[entry.dtype]))

    def _bytes(self, begin: int, size: int) -> bytes | memoryview:
        if self._memory is not None:
            return self._memory[self._start + begin : self._start + begin + size]
        self._file.seek(self._start + begin)
        return self._file.read(size)


class _DecodedSink:
    """A sink for decoded bytes; after an oversized header length it drops the remainder."""

    def __init__(self, file: BinaryIO, limits: HeaderLimits) -> None:
        self._file = file
        self._limits = limits
        self._beginning = b""

    def write(self, plain: bytes) -> int:
        missing = LENGTH_BYTES - len(self._beginning)
        if missing <= 0 and is_too_long(self._beginning, self._limits):
            return len(plain)
        self._beginning += plain[: max(0, missing)]
        return self._file.write(plain)


def _checked(
    file: BinaryIO,
    start: int,
    size: int,
    expected: Expected,
    coded: Expected | None,
    *,
    limits: HeaderLimits,
    owned: bool = False,
    memory: memoryview | None = None,
) -> Envelope:
    file.seek(start)
    header = read_header(file, size, expected, coded, limits=limits)
    envelope = Envelope(file, start, header, owned=owned, memory=memory)
    # All dense values are read once here, so that reading a tensor later cannot fail.
    envelope.check_finite()
    return envelope


def _metadata(manifest: Manifest) -> dict[str, str]:
    return {MANIFEST_KEY: json.dumps(manifest.model_dump(mode="json"), sort_keys=True, separators=(",", ":"))}
