"""Read the stored weights of a base model: the safetensors files of a folder, their headers and bytes."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

from client_agent.errors import ModelNotFound

_CHUNK = 1 << 20
_HEADER_LIMIT = 100 * 2**20  # the limit of the safetensors library


def require_dense(source: str, config: Mapping[str, object]) -> None:
    """Check that a config.json does not say that its weights are quantised.

    Raises:
        ModelNotFound: it does.
    """
    if "quantization_config" in config:
        raise ModelNotFound(
            f"{source}: its weights are stored quantised, and no other client's model would equal it; set "
            "model to the dense model, and quantization to nf4 or int8. Where only quantised weights are "
            "published (gpt-oss, DeepSeek), load them once with dequantize=True in the quantization "
            "config of transformers, save the model, and set model to that folder"
        )


def weight_files(folder: Path) -> list[Path]:
    index = folder / "model.safetensors.index.json"
    names = _indexed_files(index) if index.is_file() else {"model.safetensors"}
    files = [folder / name for name in sorted(names)]
    missing = [file.name for file in files if not file.is_file()]
    if missing:
        raise ModelNotFound(
            f"{folder}: {missing[0]} is missing, and only safetensors weights are loaded; "
            "convert the weights with save_pretrained()"
        )
    return files


def _indexed_files(index: Path) -> set[str]:
    try:
        return set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ModelNotFound(f"{index}: damaged index ({error!r}); download it again") from error


def stored_tensors(folder: Path) -> Iterator[tuple[str, Iterator[bytes]]]:
    """Yield (name, dtype, shape as text; bytes in chunks) of every stored tensor, sorted by name."""
    places: dict[str, tuple[Path, int, dict[str, Any]]] = {}
    for file in weight_files(folder):
        with file.open("rb") as stream:
            start, header = read_header(stream, file)
        places.update({name: (file, start, entry) for name, entry in header.items()})
    for name in sorted(places):
        file, start, entry = places[name]
        begin, end = entry["data_offsets"]
        yield f"{name} {entry['dtype']} {entry['shape']}", _bytes(file, start + begin, end - begin)


def read_header(stream: BinaryIO, file: Path) -> tuple[int, dict[str, dict[str, Any]]]:
    try:
        (size,) = struct.unpack("<Q", stream.read(8))
        if size > _HEADER_LIMIT:
            raise ValueError(f"a header of {size} bytes")
        header = json.loads(stream.read(size))
    except (struct.error, ValueError) as error:
        raise ModelNotFound(f"{file}: damaged safetensors file ({error}); download it again") from error
    header.pop("__metadata__", None)
    return 8 + size, header


def _bytes(file: Path, start: int, count: int) -> Iterator[bytes]:
    with file.open("rb") as stream:
        stream.seek(start)
        while count:
            chunk = stream.read(min(count, _CHUNK))
            if not chunk:
                raise ModelNotFound(f"{file}: shorter than its header says; download it again")
            count -= len(chunk)
            yield chunk
