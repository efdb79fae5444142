"""Read rows from where data are: JSONL, JSON, CSV and Parquet files, saved folders, the hub."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

from client_agent.data.row import Row
from client_agent.errors import DataInvalid

HUB = "hub:"
_READERS = {".json": "json", ".csv": "csv", ".parquet": "parquet"}
_JSON_LINES = {".jsonl", ".ndjson"}


def rows(source: str) -> Iterator[Row]:
    """Yield the rows of a file, a folder saved by `datasets`, or `hub:<id>[:<configuration>][:<split>]`.

    A folder may hold several splits: `<folder>:<split>`. JSONL is read line by line, without `datasets`.

    Raises:
        DataInvalid: it cannot be read; the message says why and what to do.
    """
    if source.startswith(HUB):
        return _numbered(_from_hub(source), source)
    path, split = _split_of(source)
    if path.is_dir():
        return _numbered(_saved(path, split), source)
    if path.suffix.lower() in _JSON_LINES:
        return _json_lines(path)
    if path.suffix.lower() not in _READERS:
        known = ", ".join(sorted({*_JSON_LINES, *_READERS}))
        raise DataInvalid(f"{source}: unknown kind of file; name a file that ends with one of {known}")
    return _numbered(_loaded(path), path.name)


def _split_of(source: str) -> tuple[Path, str | None]:
    folder, colon, split = source.rpartition(":")
    if colon and Path(folder).expanduser().is_dir():
        return Path(folder).expanduser(), split
    return Path(source).expanduser(), None


def _json_lines(path: Path) -> Iterator[Row]:
    try:
        with path.open("rb") as lines:
            for number, line in enumerate(lines, start=1):
                if line.strip():
                    yield Row(f"{path} line {number}", _object(line, f"{path} line {number}"))
    except OSError as error:
        raise DataInvalid(
            f"{path}: cannot be read ({error.strerror}); check the path in the settings"
        ) from error


def _object(line: bytes, place: str) -> dict[str, object]:
    try:
        text = line.decode("utf-8")
        record = json.loads(text)
        if "\\u" in text:  # an escape can spell half a character, which no tokenizer takes
            json.dumps(record, ensure_ascii=False).encode("utf-8")
    except (ValueError, RecursionError) as error:
        raise DataInvalid(f"{place}: not JSON ({error}); write one JSON object per line in UTF-8") from error
    if not isinstance(record, dict):
        raise DataInvalid(f"{place}: not a JSON object; write prompt and completion, or messages")
    return cast(dict[str, object], record)


def _numbered(table: Any, source: str) -> Iterator[Row]:
    for number, columns in enumerate(table, start=1):
        yield Row(f"{source} row {number}", columns)


def _datasets() -> Any:
    try:
        import datasets
    except ImportError as error:
        raise DataInvalid(
            f"reading anything but JSONL needs the package datasets ({error}); install the extra `data`, or "
            "convert the file to JSONL"
        ) from error
    datasets.disable_progress_bars()
    return datasets


def _loaded(path: Path) -> Any:
    datasets = _datasets()
    if not path.is_file():
        raise DataInvalid(f"{path}: no such file; check the path in the settings")
    kind = _READERS[path.suffix.lower()]
    try:
        return datasets.load_dataset(kind, data_files=str(path), split="train", streaming=True)
    except Exception as error:  # whatever pandas or pyarrow make of somebody's file
        raise _unreadable(str(path), error) from error


def _saved(folder: Path, split: str | None) -> Any:
    datasets = _datasets()
    try:
        saved = datasets.load_from_disk(str(folder))
    except (FileNotFoundError, OSError, ValueError) as error:
        raise DataInvalid(
            f"{folder}: no data set saved by `datasets` ({error}); name a file, or save with save_to_disk"
        ) from error
    if not isinstance(saved, datasets.DatasetDict):
        return saved
    if split is None or split not in saved:
        raise DataInvalid(
            f"{folder}: choose a split, such as {folder}:{min(saved)}; it has {', '.join(saved)}"
        )
    return saved[split]


def _from_hub(source: str) -> Any:
    name, *where = source.removeprefix(HUB).split(":")
    if not name or len(where) > 2:
        raise DataInvalid(
            f"{source}: write {HUB}<id>, {HUB}<id>:<split> or {HUB}<id>:<configuration>:<split>"
        )
    split = where.pop() if where else "train"
    datasets = _datasets()
    try:
        return datasets.load_dataset(name, *where, split=split)
    except Exception as error:  # the hub, the network and the data set's files have errors of many kinds
        raise _unreadable(source, error) from error


def _unreadable(source: str, error: Exception) -> DataInvalid:
    reason = str(error).strip().splitlines() or [type(error).__name__]
    return DataInvalid(f"{source}: cannot be read ({reason[0]}); check the name, the split and the file")
