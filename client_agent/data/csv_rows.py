"""Read the rows of a CSV file, whatever separates its cells."""

from __future__ import annotations

import contextlib
import csv
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import TextIO

from client_agent.data.row import Row
from client_agent.errors import DataInvalid

_DELIMITERS = (",", ";", "\t", "|")
_LARGEST_CELL = 2**31 - 1


def csv_rows(path: Path) -> Iterator[Row]:
    """Yield the rows of a CSV file in UTF-8.

    Raises:
        OSError: it cannot be read.
        DataInvalid: it is no CSV in UTF-8, or has two columns of one name.
    """
    # The default of 128 KiB is less than a long document; the limit is that of a C long on Windows.
    csv.field_size_limit(_LARGEST_CELL)
    # Spreadsheets write a byte order mark; it would become part of the first column's name.
    with path.open(encoding="utf-8-sig", newline="") as lines:
        delimiter, skipped = _delimiter(lines)
        table = csv.DictReader(lines, strict=True, delimiter=delimiter)
        try:
            _check_names(path, table.fieldnames or ())
            for columns in table:
                place = f"{path} row {table.line_num + skipped}"
                # DictReader puts cells too many under None, and None in place of cells too few.
                if None in columns or None in columns.values():
                    yield Row(
                        place,
                        {},
                        fault=f"has another number of cells than the first line has names (cells end with "
                        f"{delimiter!r}); quote cells that contain it",
                    )
                else:
                    yield Row(place, columns)
        except (csv.Error, UnicodeDecodeError) as error:
            raise DataInvalid(
                f"{path} row {table.line_num + skipped}: not CSV in UTF-8 ({error}); save it as CSV UTF-8"
            ) from error


def _check_names(path: Path, names: Sequence[str]) -> None:
    repeated = [name for name, count in Counter(names).items() if count > 1 and name.strip()]
    if repeated:
        raise DataInvalid(
            f"{path}: the first line has the column {repeated[0]} twice; rename or remove one of them"
        )


def _delimiter(lines: TextIO) -> tuple[str, int]:
    """Return the delimiter of a CSV file, and the number of lines before its header.

    A first line such as `sep=;`, which spreadsheets write, names the delimiter. Otherwise delimiters that
    divide the first row into as many cells as the header are preferred, and among them the one that divides
    the header into most cells. Afterwards `lines` stands at the header.
    """
    content = _first_line(lines).rstrip("\r\n").strip('"')
    if content.startswith("sep=") and len(content) == len("sep=") + 1:
        return content[-1], 1
    fits = {delimiter: _fit(lines, delimiter) for delimiter in _DELIMITERS}
    lines.seek(0)
    # Not `csv.Sniffer`, which guesses from letters and finds delimiters inside of texts.
    return max(fits, key=fits.__getitem__), 0


def _first_line(lines: TextIO) -> str:
    try:
        return lines.readline()
    except UnicodeDecodeError:
        return ""  # reading the names fails alike, and says where


def _fit(lines: TextIO, delimiter: str) -> tuple[bool, int]:
    """Return whether header and first row have equally many cells, more than one, and the header's number."""
    lines.seek(0)
    records: list[list[str]] = []
    with contextlib.suppress(csv.Error, UnicodeDecodeError):  # reading the rows fails alike, and says where
        records.extend(islice(csv.reader(lines, delimiter=delimiter), 2))
    names = len(records[0]) if records else 0
    return names > 1 and len(records) == 2 and len(records[1]) == names, names
