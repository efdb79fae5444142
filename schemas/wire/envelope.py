"""The doors of the wire: `pack` makes a tensor body, `unpack` lets one in, checked, in bounded memory.

A body is an ordinary safetensors file, zstd-compressed or not, whose metadata has one key `tessera`: the
manifest as JSON. Until `unpack` returns, its bytes are hostile.
"""

from __future__ import annotations

import io
import json
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import BinaryIO, Literal, Self, TypeVar, cast

import numpy as np
from numpy.typing import NDArray
from pydantic import ValidationError

from schemas.maths.adapter import Layout, Shape
from schemas.messages.updates import Manifest
from schemas.wire import compress as zstd
from schemas.wire.header import DENSE, Entry, Expected, Header, Slot, read_header, write_header
from schemas.wire.refusals import DecompressedTooLarge, ManifestRefused, TensorNonfinite
from schemas.wire.strict_json import MalformedJson, loads

MEDIA_TYPE = "application/vnd.tessera.adapter+safetensors"
MANIFEST_KEY = "tessera"

Encoding = Literal["zstd"]
Array = NDArray[np.float32] | NDArray[np.float16] | NDArray[np.int32]
AnyManifest = TypeVar("AnyManifest", bound=Manifest)

_DTYPES: dict[str, type[np.float32] | type[np.float16] | type[np.int32]] = {
    "F32": np.float32,
    "F16": np.float16,
    "I32": np.int32,
}
_NAMES = {np.dtype(scalar): name for name, scalar in _DTYPES.items()}
_PIECE_BYTES = 2**20
_SPOOL_BYTES = 4 * 2**20


def slots(layout: Layout, *, optional: bool = False) -> dict[str, Slot]:
    """Expect the dense tensors of a layout, float32 or float16."""
    return {name: Slot(shape, DENSE, optional) for name, shape in layout.items()}


def head(layout: Layout, manifest: Manifest) -> bytes:
    """Write everything of a dense float32 body but its values, which follow in the layout's order."""
    return write_header({name: ("F32", shape) for name, shape in layout.items()}, _metadata(manifest))


def pack(tensors: Mapping[str, Array], manifest: Manifest, *, compress: bool = False) -> bytes:
    """Make a body of float32, float16 or int32 tensors, sorted by name; the same input gives the same bytes.

    Raises:
        ValueError: a tensor has another dtype.
    """
    ordered = {name: np.ascontiguousarray(tensors[name]) for name in sorted(tensors)}
    described: dict[str, tuple[str, tuple[int, ...]]] = {}
    for name, values in ordered.items():
        if values.dtype not in _NAMES:
            raise ValueError(f"{name} is {values.dtype}; the wire carries float32, float16 and int32")
        described[name] = (_NAMES[values.dtype], values.shape)
    body = b"".join([write_header(described, _metadata(manifest)), *(v.tobytes() for v in ordered.values())])
    return zstd.compress(body) if compress else body


def unpack(
    source: bytes | BinaryIO, *, encoding: Encoding | None, expected: Expected, max_bytes: int
) -> Envelope:
    """Decode and check a body: codec, header, names, shapes, dtypes, layout, finite values; in this order.

    `source` is read from its current position to its end; a file must outlive the envelope. `max_bytes`
    bounds the decoded size. The manifest is checked when it is asked for: what is wrong with the tensors
    comes first.

    Raises:
        BodyRefused: the subclass says why.
    """
    file: BinaryIO = io.BytesIO(source) if isinstance(source, bytes) else source
    if encoding is None:
        plain, start = file, file.tell()
        size = file.seek(0, io.SEEK_END) - start
        if size > max_bytes:
            raise DecompressedTooLarge(f"more than {max_bytes} bytes")
        return _checked(plain, start, size, expected)
    spool = cast("BinaryIO", tempfile.SpooledTemporaryFile(max_size=_SPOOL_BYTES))  # noqa: SIM115 (the envelope closes it)
    try:
        size = zstd.decompress(file, spool, max_bytes=max_bytes)
        return _checked(spool, 0, size, expected, owned=True)
    except BaseException:
        spool.close()
        raise


class Envelope:
    """A checked body whose tensors are read on demand."""

    def __init__(self, file: BinaryIO, start: int, header: Header, *, owned: bool) -> None:
        self._file = file
        self._start = start
        self._header = header
        self._owned = owned
        self._entries = {entry.name: entry for entry in header.entries}
        self._squares: dict[str, float] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Give back the decoded copy, if there is one."""
        if self._owned:
            self._file.close()

    @property
    def names(self) -> Sequence[str]:
        """The tensors that came, in the order of their data."""
        return tuple(self._entries)

    def manifest(self, kind: type[AnyManifest]) -> AnyManifest:
        """Read the manifest.

        Raises:
            ManifestRefused: it is missing, malformed, or not of this kind.
        """
        text = self._header.metadata.get(MANIFEST_KEY)
        if text is None:
            raise ManifestRefused(f"__metadata__ has no key {MANIFEST_KEY}")
        try:
            return kind.model_validate(loads(text.encode("utf-8")))
        except (MalformedJson, UnicodeEncodeError) as error:
            raise ManifestRefused("the manifest is not strict JSON") from error
        except ValidationError as error:
            fields = sorted({".".join(str(part) for part in e["loc"]) or "manifest" for e in error.errors()})
            raise ManifestRefused(f"wrong or missing: {', '.join(fields[:10])}") from error

    def shape(self, name: str) -> Shape:
        """Give the shape of one tensor."""
        return self._entries[name].shape

    def read(self, name: str) -> Array:
        """Read one tensor as it was sent."""
        entry = self._entries[name]
        self._file.seek(self._start + entry.begin)
        raw = self._file.read(entry.end - entry.begin)
        return cast("Array", np.frombuffer(raw, _DTYPES[entry.dtype]).reshape(entry.shape))

    def read_float32(self, name: str) -> NDArray[np.float32]:
        """Read one tensor as float32."""
        return self.read(name).astype(np.float32, copy=False)

    def norm(self, names: Iterable[str]) -> float:
        """Give the L2 norm of these tensors together."""
        return float(np.sqrt(sum(self._squares[name] for name in names)))

    def float32_run(self, names: Sequence[str]) -> tuple[int, int] | None:
        """Say where these tensors lie one after the other as float32: (begin, end) in the decoded body."""
        entries = [self._entries[name] for name in names]
        together = all(left.end == right.begin for left, right in pairwise(entries))
        if not entries or not together or any(entry.dtype != "F32" for entry in entries):
            return None
        return entries[0].begin, entries[-1].end

    def check_finite(self) -> None:
        """Look at every value once.

        Raises:
            TensorNonfinite: NaN, infinity, or more denormal values than ordinary ones.
        """
        for entry in self._header.entries:
            self._squares[entry.name] = sum(self._examine(entry))

    def _examine(self, entry: Entry) -> Iterator[float]:
        denormal = 0
        self._file.seek(self._start + entry.begin)
        left = entry.end - entry.begin
        while left:
            raw = self._file.read(min(_PIECE_BYTES, left))
            left -= len(raw)
            values = cast("Array", np.frombuffer(raw, _DTYPES[entry.dtype]))
            wide = values.astype(np.float64)
            squares = float(np.einsum("i,i->", wide, wide))  # np.dot would wake BLAS's threads for each
            if not np.isfinite(squares):  # float64 holds the square of every finite float32
                raise TensorNonfinite(f"{entry.name} has NaN or infinity")
            if entry.dtype != "I32":
                denormal += _denormals(values)
            yield squares
        if denormal * 2 > max(1, (entry.end - entry.begin) // np.dtype(_DTYPES[entry.dtype]).itemsize):
            raise TensorNonfinite(f"{entry.name} has mostly denormal values")


def _checked(file: BinaryIO, start: int, size: int, expected: Expected, *, owned: bool = False) -> Envelope:
    file.seek(start)
    envelope = Envelope(file, start, read_header(file, size, expected), owned=owned)
    envelope.check_finite()
    return envelope


def _metadata(manifest: Manifest) -> dict[str, str]:
    return {MANIFEST_KEY: json.dumps(manifest.model_dump(mode="json"), sort_keys=True, separators=(",", ":"))}


def _denormals(values: Array) -> int:
    """Count the values of float16 or float32 whose exponent bits are 0 and whose mantissa is not."""
    if values.dtype.itemsize == 2:
        halves = values.view(np.uint16)
        return int(np.count_nonzero(halves[(halves & 0x7C00) == 0] & 0x7FFF))
    words = values.view(np.uint32)
    return int(np.count_nonzero(words[(words & 0x7F800000) == 0] & 0x7FFFFFFF))
