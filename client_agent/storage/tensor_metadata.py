"""Safetensors files whose bytes follow from their content, and their metadata alone. Needs no torch."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import safetensors.numpy
from numpy.typing import NDArray

from schemas.wire.compress import is_frame
from schemas.wire.envelope import Encoding, Envelope, unpack
from schemas.wire.header import Expected

_LENGTH_BYTES = 8
_ALIGNMENT = 8
_LARGEST_FRAME = 2**33
"""Bytes that a frame may decode to. Coordinators serve dense weights without compression."""


def save_tensors(tensors: Mapping[str, NDArray[Any]], metadata: Mapping[str, str]) -> bytes:
    """Return a safetensors file with its metadata in order; the library writes them in a random one."""
    content = safetensors.numpy.save(dict(tensors), metadata=dict(metadata))
    end = _LENGTH_BYTES + int.from_bytes(content[:_LENGTH_BYTES], "little")
    fields = json.loads(content[_LENGTH_BYTES:end])
    # The library writes metadata in a random order, and a repeated step must write the same bytes.
    fields["__metadata__"] = dict(sorted(fields["__metadata__"].items()))
    header = json.dumps(fields, separators=(",", ":")).encode()
    # Tensors have to begin at a multiple of 8 bytes.
    header += b" " * (-len(header) % _ALIGNMENT)
    return len(header).to_bytes(_LENGTH_BYTES, "little") + header + content[end:]


def metadata_in(header: bytes) -> dict[str, str]:
    """Parse the metadata of the JSON header of a safetensors file."""
    fields: dict[str, dict[str, str]] = json.loads(header)
    return fields["__metadata__"]


def metadata_of(content: bytes) -> dict[str, str]:
    """Return the metadata of a whole file's content."""
    length = int.from_bytes(content[:_LENGTH_BYTES], "little")
    return metadata_in(content[_LENGTH_BYTES : _LENGTH_BYTES + length])


def read_metadata(path: Path) -> dict[str, str]:
    """Read the metadata of a file; its tensors are not read."""
    with path.open("rb") as file:
        return metadata_in(file.read(int.from_bytes(file.read(_LENGTH_BYTES), "little")))


def open_body(body: bytes, expected: Expected) -> Envelope:
    """Validate a body, compressed or not, and return it; its tensors are views of the bytes where it is not.

    Raises:
        BodyRefused: it is damaged, or has other tensors.
    """
    encoding: Encoding | None = "zstd" if is_frame(body) else None
    return unpack(
        body,
        encoding=encoding,
        expected=expected,
        # A frame of a few bytes could claim any size.
        max_bytes=len(body) if encoding is None else _LARGEST_FRAME,
    )
