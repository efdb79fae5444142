"""Read the metadata of a safetensors file without its tensors. Needs no torch."""

from __future__ import annotations

import json
from pathlib import Path

_LENGTH_BYTES = 8


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
