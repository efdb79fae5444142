"""One row of a data set, with typed access to its columns; errors name file, row and column.

A row records which of its columns were read, so that columns that nothing reads are reported.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import cast

from client_agent.data.printable import is_blank, printable
from client_agent.errors import DataInvalid

_SHOWN_CHARACTERS = 60


@dataclass(frozen=True, slots=True)
class Row:
    """One row of a source, or one object in a list of a row. A column that is null is absent.

    Attributes:
        place: where it is from, such as `train.csv row 3`.
        columns: its values by the names in the source.
        names: (name that a format expects -> name in the source), for columns with names of their own.
        fault: why the row could not be read; it then has no columns.
        ignored: names that are absent, in the row and in its objects.
    """

    place: str
    columns: Mapping[str, object]
    names: Mapping[str, str] = field(default_factory=dict)
    fault: str | None = None
    ignored: AbstractSet[str] = frozenset()
    _read: set[str] = field(default_factory=set, compare=False, repr=False)
    _inner: list[tuple[str, Row]] = field(default_factory=list, compare=False, repr=False)

    def invalid(self, column: str, fact: str) -> DataInvalid:
        """Return the error about a column, with the names of the row's columns."""
        names = ", ".join(map(str, self.columns)) or "none"
        return DataInvalid(printable(f"{self.place}: column {column} {fact}; the columns are: {names}"))

    def has(self, columns: Iterable[str]) -> bool:
        """Whether a row has all of these columns, and none of them is null.

        Raises:
            DataInvalid: the row could not be read.
        """
        if self.fault is not None:
            raise DataInvalid(f"{self.place}: {self.fault}")
        actual = [self.names.get(column, column) for column in columns]
        return all(self.columns.get(name) is not None and name not in self.ignored for name in actual)

    def value(self, column: str) -> object:
        """Return a column's value, which may be in an object: `answers.text`.

        Raises:
            DataInvalid: there is no such column, it is null, or the row could not be read.
        """
        # A name with a dot may be that of one column.
        first, *inner = [column] if column in self.columns else column.split(".")
        actual = self.names.get(first, first)
        if not self.has([first]):
            fact = (
                "is null" if actual in self.columns and actual not in self.ignored else self._missing(actual)
            )
            raise self.invalid(actual, fact + (f" (columns.{first})" if actual != first else ""))
        self._read.add(actual)
        value = self.columns[actual]
        for name in inner:
            if not isinstance(value, Mapping) or value.get(name) is None:
                raise self.invalid(column, "is missing")
            value = value[name]
        return value

    def _missing(self, column: str) -> str:
        """Return the error that a column is missing, with the column of a similar name."""
        names = {str(name).casefold(): str(name) for name in self.columns if name not in self.ignored}
        similar = get_close_matches(column.casefold(), names, n=1)
        return f"is missing, and {names[similar[0]]} is similar" if similar else "is missing"

    def optional(self, column: str) -> object:
        """Return a column's value; None if it is absent."""
        return self.value(column) if self.has([column]) else None

    def text(self, column: str) -> str:
        """Return a text with something to read.

        Raises:
            DataInvalid: it is missing, empty, blank, or no text.
        """
        value = self.value(column)
        if not isinstance(value, str):
            raise self.invalid(column, f"is not a text but {shown(value)}")
        if is_blank(value):
            raise self.invalid(column, f"is empty{' (white space alone)' if value else ''}")
        return value

    def texts(self, column: str) -> tuple[str, ...]:
        """Return a list of texts, one at least.

        Raises:
            DataInvalid: it is missing, empty, or holds something else.
        """
        values = self.value(column)
        if not isinstance(values, Sequence) or isinstance(values, str) or not values:
            raise self.invalid(column, f"is not a list of texts but {shown(values)}")
        if not all(isinstance(value, str) for value in values):
            raise self.invalid(column, f"has an entry that is not a text: {shown(values)}")
        return tuple(cast(Sequence[str], values))

    def objects(self, column: str) -> tuple[Row, ...]:
        """Return a list of objects as rows of their own, one at least.

        Raises:
            DataInvalid: it is missing, empty, or holds something else.
        """
        values = self.value(column)
        if not isinstance(values, Sequence) or isinstance(values, str) or not values:
            raise self.invalid(column, f"is not a list of objects but {shown(values)}")
        rows = []
        for index, value in enumerate(values):
            if not isinstance(value, Mapping):
                raise self.invalid(f"{column}[{index}]", f"is not an object but {shown(value)}")
            columns = cast(Mapping[str, object], value)
            rows.append(Row(f"{self.place}, {column}[{index}]", columns, ignored=self.ignored))
        self._inner.extend((column, row) for row in rows)
        return tuple(rows)

    def choice(self, column: str, allowed: Sequence[object]) -> int:
        """Return the index of a column's value in `allowed`; values of a CSV file are compared as text.

        Raises:
            DataInvalid: the value is missing, or is not in `allowed`.
        """
        value = self.value(column)
        text = str(value).strip().lower()
        for index, candidate in enumerate(allowed):
            # The type counts, since True equals 1 in Python.
            if isinstance(value, str | type(candidate)) and text == str(candidate).lower():
                return index
        listed = ", ".join(shown(candidate) for candidate in allowed)
        raise self.invalid(column, f"is {shown(value)}, and only these are labels: {listed}")

    def unread(self) -> Iterator[tuple[str, object]]:
        """Yield the columns that hold something and were not read, those of objects as `messages.id`."""
        for name, value in self.columns.items():
            if name not in self._read and name not in self.ignored and not _is_empty(value):
                yield str(name), value
        for column, row in self._inner:
            for name, value in row.unread():
                yield f"{column}.{name}", value


def _is_empty(value: object) -> bool:
    if isinstance(value, str):
        return is_blank(value)
    return value is None or (isinstance(value, Sequence | Mapping) and not value)


def shown(value: object) -> str:
    """Return the beginning of a value as JSON, for messages."""
    text = json.dumps(value, ensure_ascii=False, default=str)
    return printable(text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}...")
