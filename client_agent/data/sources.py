"""Read rows from JSONL, JSON, CSV and Parquet files, from folders saved by `datasets`, and from the hub.

Text files are read with the standard library, which guesses no types; the rest with `datasets`.
"""

from __future__ import annotations

import json
from codecs import BOM_UTF8
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

from client_agent.data.csv_rows import csv_rows
from client_agent.data.instruction_tasks import is_task, task_files, task_rows
from client_agent.data.json_text import RepeatedKey, fault_of, parsed
from client_agent.data.row import Row
from client_agent.errors import DataInvalid
from schemas.user_files import decoded

HUB = "hub:"
_LISTS_OF_ROWS = frozenset({"messages", "conversations", "prompt", "completion", "tools", "functions"})
"""Columns of one row that hold lists of objects."""


def rows(source: str, *, stream: bool = False) -> Iterator[Row]:
    """Yield the rows of a file, a folder saved by `datasets`, or `hub:<id>[:<configuration>][:<split>]`.

    A folder may hold several splits: `<folder>:<split>`, or the task files of Natural Instructions. A file is
    JSON lines unless it ends with .json, .csv or .parquet; endings of other known kinds are refused. A row
    that cannot be read is yielded with its fault.

    Args:
        stream: whether rows of the hub are read while they are asked for, instead of downloaded first.

    Raises:
        DataInvalid: it cannot be read; the message says why and what to do.
    """
    if source.startswith(HUB):
        return _streamed(source) if stream else _numbered(_from_hub(source), source)
    path, split = _split_of(source)
    if path.is_dir() and (files := task_files(path)):
        return (row for file in files for row in _readable(file, _json))
    if path.is_dir():
        return _numbered(_saved(path, split), source)
    if path.suffix.lower() in _REFUSED:
        raise DataInvalid(
            f"{path}: {path.suffix} files are not read; {_REFUSED[path.suffix.lower()]}, and set its path"
        )
    return _readable(path, _READERS.get(path.suffix.lower(), _json_lines))


def _split_of(source: str) -> tuple[Path, str | None]:
    folder, colon, split = source.rpartition(":")
    if colon and Path(folder).expanduser().is_dir():
        return Path(folder).expanduser(), split
    return Path(source).expanduser(), None


def _readable(path: Path, reader: Callable[[Path], Iterator[Row]]) -> Iterator[Row]:
    try:
        yield from reader(path)
    except OSError as error:
        raise DataInvalid(
            f"{path}: cannot be read ({error.strerror}); check the path in the settings"
        ) from error


def _json_lines(path: Path) -> Iterator[Row]:
    with path.open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            if line.strip():
                yield _object(line, f"{path} line {number}")


def _object(line: bytes, place: str) -> Row:
    try:
        record = _parsed(line)
    except (ValueError, RecursionError) as error:
        return Row(place, {}, fault=f"not JSON ({error}); write one JSON object per line in UTF-8")
    return _row(place, record)


def _row(place: str, record: object) -> Row:
    """Return a row of a JSON file."""
    if not isinstance(record, dict):
        return Row(place, {}, fault="not a JSON object; write prompt and completion, or messages")
    if (fault := fault_of(record)) is not None:
        return Row(place, {}, fault=fault)
    return Row(place, cast(dict[str, object], record))


def _parsed(content: bytes) -> object:
    """Parse JSON in UTF-8.

    Raises:
        ValueError, RecursionError: it is not JSON, or has half a character, which no tokenizer takes.
    """
    text = decoded(content)
    record = parsed(text)
    if "\\u" in text:  # an escape can spell half a character
        json.dumps(record, ensure_ascii=False).encode("utf-8")
    return record


def _json(path: Path) -> Iterator[Row]:
    """Read a list of objects, perhaps in an object such as `{"data": [...]}`, or JSON lines."""
    begins_a_list, several_objects = _beginning(path)
    if several_objects:
        yield from _json_lines(path)
        return
    try:
        content = _parsed(path.read_bytes())
    except (ValueError, RecursionError) as error:
        if not begins_a_list:
            yield from _json_lines(path)  # which finds the line at fault
            return
        raise DataInvalid(
            f"{path}: not JSON in UTF-8 ({error}); write [{{...}}, ...], or JSON lines"
        ) from error
    if isinstance(content, RepeatedKey):
        raise DataInvalid(f"{path}: {fault_of(content)}")
    if is_task(content):
        yield from task_rows(path, content)
        return
    for number, record in enumerate(_records(path, content), start=1):
        yield _row(f"{path} row {number}", record)


def _beginning(path: Path) -> tuple[bool, bool]:
    """Return whether a file begins with a list, and whether its first line of several is an object."""
    with path.open("rb") as lines:
        filled = (line for line in lines if line.removeprefix(BOM_UTF8).strip())
        first = next(filled, b"").removeprefix(BOM_UTF8).strip()
        try:
            return first[:1] == b"[", isinstance(json.loads(first), dict) and next(filled, None) is not None
        except (ValueError, RecursionError):
            return first[:1] == b"[", False


def _records(path: Path, content: object) -> list[object]:
    """Return the rows of a JSON file: a list, the list in an object around it, or one row.

    Raises:
        DataInvalid: an object has several lists of objects.
    """
    if isinstance(content, list):
        return content
    # A single row may have lists of objects too, such as its messages.
    if isinstance(content, dict) and not content.keys() & _LISTS_OF_ROWS:
        lists = [name for name, value in content.items() if _is_list_of_objects(value)]
        if len(lists) > 1:
            raise DataInvalid(
                f"{path}: an object with several lists of objects, {', '.join(map(str, lists))}; leave the "
                "list of the rows alone in the file"
            )
        if lists:
            return cast(list[object], content[lists[0]])
    return [content]


def _is_list_of_objects(value: object) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(entry, dict) for entry in value)


def _parquet(path: Path) -> Iterator[Row]:
    if not path.is_file():
        raise FileNotFoundError(2, "No such file or directory")
    datasets = _datasets()
    try:
        # In memory: otherwise `datasets` copies the silo's data into its cache under the home folder.
        table = datasets.Dataset.from_parquet(str(path), keep_in_memory=True)
    except Exception as error:  # pyarrow has no common error for damaged files
        raise _unreadable(str(path), error) from error
    return _numbered(table, str(path))


_READERS: dict[str, Callable[[Path], Iterator[Row]]] = {
    ".json": _json,
    ".csv": csv_rows,
    ".parquet": _parquet,
}


_REFUSED = dict.fromkeys(
    (".gz", ".bz2", ".xz", ".zst", ".zip", ".7z", ".tar", ".tgz"), "unpack it"
) | dict.fromkeys(
    (".tsv", ".tab", ".xls", ".xlsx", ".ods", ".xml", ".yaml", ".yml", ".arrow", ".feather", ".pkl"),
    "convert it to JSON lines, CSV or Parquet",
)
"""Endings of files that are certainly no JSON lines, and what to do with them."""


def _numbered(table: Any, source: str) -> Iterator[Row]:
    for number, columns in enumerate(table, start=1):
        yield Row(f"{source} row {number}", cast(dict[str, object], _without_nulls(columns)))


def _without_nulls(value: object) -> object:
    """Return a value of a columnar file without null keys: the file adds the keys of all rows to each row."""
    if isinstance(value, dict):
        return {key: _without_nulls(entry) for key, entry in value.items() if entry is not None}
    return [_without_nulls(entry) for entry in value] if isinstance(value, list) else value


def _datasets() -> Any:
    try:
        import datasets
    except ImportError as error:
        raise DataInvalid(
            f"reading Parquet, saved folders and the hub needs the package datasets ({error}); install the "
            "extra `data`, or convert the data to JSONL or CSV"
        ) from error
    datasets.disable_progress_bars()
    return datasets


def _saved(folder: Path, split: str | None) -> Any:
    datasets = _datasets()
    try:
        saved = datasets.load_from_disk(str(folder))
    except (FileNotFoundError, OSError, ValueError) as error:
        raise DataInvalid(
            f"{folder}: neither a data set saved by `datasets` ({error}) nor task files, task*.json; name a "
            "file, or save with save_to_disk"
        ) from error
    if not isinstance(saved, datasets.DatasetDict):
        return saved
    if split is None or split not in saved:
        raise DataInvalid(
            f"{folder}: choose a split, such as {folder}:{min(saved)}; it has {', '.join(saved)}"
        )
    return saved[split]


def _streamed(source: str) -> Iterator[Row]:
    table = _from_hub(source, streaming=True)
    try:
        yield from _numbered(table, source)
    except Exception as error:  # a stream opens its files as it reaches them
        raise _unreadable(source, error) from error


def _from_hub(source: str, **options: bool) -> Any:
    name, *where = source.removeprefix(HUB).split(":")
    if not name or len(where) > 2:
        raise DataInvalid(
            f"{source}: write {HUB}<id>, {HUB}<id>:<split> or {HUB}<id>:<configuration>:<split>"
        )
    split = where.pop() if where else "train"
    datasets = _datasets()
    try:
        return datasets.load_dataset(name, *where, split=split, **options)
    except Exception as error:  # the hub, the network and the data set's files have errors of many kinds
        raise _unreadable(source, error) from error


def _unreadable(source: str, error: Exception) -> DataInvalid:
    # The first line only: some of these errors print whole tables.
    reason = str(error).strip().splitlines() or [type(error).__name__]
    return DataInvalid(f"{source}: cannot be read ({reason[0]}); check the name, the split and the file")
