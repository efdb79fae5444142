"""Read the stored weights of a base model: the safetensors files of a folder, their headers and bytes."""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

from client_agent.errors import ModelNotFound

_SINGLE = "model.safetensors"
_PLAIN_NAME = re.compile(r"[^/\\]+\.safetensors")
_CHUNK = 1 << 20
_HEADER_LIMIT = 100 * 2**20  # the limit of the safetensors library


def require_plain(source: str, config: Mapping[str, object]) -> None:
    """Check that a config.json names neither quantised weights nor a weight file.

    Raises:
        ModelNotFound: it does.
    """
    if "transformers_weights" in config:
        raise ModelNotFound(
            f"{source}: transformers_weights in config.json names {config['transformers_weights']!r}, which "
            "is not what the slug is derived from; remove that line, and name the weights model.safetensors"
        )
    text = config.get("text_config")
    if "quantization_config" in config or (isinstance(text, dict) and "quantization_config" in text):
        raise ModelNotFound(
            f"{source}: its weights are stored quantised, and no other client's model would equal it; set "
            "model to the dense model, and quantization to nf4 or int8. Where only quantised weights are "
            "published (gpt-oss, DeepSeek), load them once with dequantize=True in the quantization "
            "config of transformers, save the model, and set model to that folder"
        )


def weight_files(folder: Path) -> list[Path]:
    """Return the weight files of a folder: those that are hashed are those that transformers loads.

    Other files such as pytorch_model.bin, consolidated.safetensors or variants are read by neither.

    Raises:
        ModelNotFound: a file is missing, or transformers would load other files or an adapter as well.
    """
    index = folder / "model.safetensors.index.json"
    names = _indexed_files(index) if index.is_file() else {_SINGLE}
    _require_unambiguous(folder, names)
    files = [folder / name for name in sorted(names)]
    missing = [file.name for file in files if not file.is_file()]
    if missing:
        raise ModelNotFound(
            f"{folder}: {missing[0]} is missing, and only safetensors weights are loaded; "
            "convert the weights with save_pretrained()"
        )
    return files


def _require_unambiguous(folder: Path, names: Collection[str]) -> None:
    """Raise if transformers would load other weights than the files of these names."""
    if names != {_SINGLE} and (folder / _SINGLE).is_file():
        raise ModelNotFound(
            f"{folder}: there are two sets of weights, {_SINGLE} and the shards of {_SINGLE}.index.json "
            f"({', '.join(sorted(names)[:3])}); remove {_SINGLE}, or the index and its shards"
        )
    if (folder / "adapter_config.json").is_file():
        raise ModelNotFound(
            f"{folder}: adapter_config.json is an adapter, and would be loaded into the base model; move "
            "it and adapter_model.safetensors to another folder, or merge it into the weights"
        )
    parts = sorted(path.name for path in folder.glob("shard-*-model-*.safetensors"))
    if parts:
        raise ModelNotFound(
            f"{folder}: {parts[0]} is part of a distributed checkpoint, which would be loaded instead of "
            f"{min(names)}; remove such files, or save the model again with save_pretrained()"
        )


def _indexed_files(index: Path) -> set[str]:
    """Return the names of the files of an index, which are all in its folder."""
    try:
        names = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
        outside = sorted(name for name in names if not _PLAIN_NAME.fullmatch(name))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ModelNotFound(f"{index}: damaged index ({error!r}); download it again") from error
    if outside:
        raise ModelNotFound(
            f"{index}: names {outside[0]!r}, which is not a safetensors file of this folder; download the "
            "model again"
        )
    return names


def stored_tensors(folder: Path) -> Iterator[tuple[str, Iterator[bytes]]]:
    """Yield (name, dtype, shape as text; bytes in chunks) of every stored tensor, sorted by name."""
    places: dict[str, tuple[Path, int, dict[str, Any]]] = {}
    for file in weight_files(folder):
        with file.open("rb") as stream:
            start, header = read_header(stream, file)
        twice = sorted(places.keys() & header.keys())
        if twice:
            raise ModelNotFound(
                f"{folder}: {twice[0]} is in both {places[twice[0]][0].name} and {file.name}; download the "
                "model again"
            )
        places.update({name: (file, start, entry) for name, entry in header.items()})
    # By name, so that one file and shards have the same digest.
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
    # Metadata does not change the function.
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
