"""One row of a data set, with typed access to its columns; errors name file, row and column."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import cast

from client_agent.errors import DataInvalid

_SHOWN_CHARACTERS = 60


@dataclass(frozen=True, slots=True)
class Row:
    """One row of a source.

    Attributes:
        place: where it is from, such as `train.csv row 3`.
        columns: its values by the names in the source.
        names: (name that a format expects -> name in the source), for columns with names of their own.
        fault: why the row could not be read; it then has no columns.
    """

    place: str
    columns: Mapping[str, object]
    names: Mapping[str, str] = field(default_factory=dict)
    fault: str | None = None

    def invalid(self, column: str, fact: str) -> DataInvalid:
        """Return the error that a column is not as it has to be."""
        names = ", ".join(map(str, self.columns)) or "none"
        return DataInvalid(f"{self.place}: column {column} {fact}; the columns are: {names}")

    def has(self, columns: Iterable[str]) -> bool:
        """Whether a row has all of these columns.

        Raises:
            DataInvalid: the row could not be read.
        """
        if self.fault is not None:
            raise DataInvalid(f"{self.place}: {self.fault}")
        return all(self.names.get(column, column) in self.columns for column in columns)

    def value(self, column: str) -> object:
        """Return a column's value, which may be in an object: `answers.text`.

        Raises:
            DataInvalid: there is no such column, or the row could not be read.
        """
        first, *inner = column.split(".")
        if not self.has([first]):
            actual = self.names.get(first, first)
            raise self.invalid(actual, "is missing" + (f" (columns.{first})" if actual != first else ""))
        value = self.columns[self.names.get(first, first)]
        for name in inner:
            if not isinstance(value, Mapping) or name not in value:
                raise self.invalid(column, "is missing")
            value = value[name]
        return value

    def text(self, column: str) -> str:
        """Return a text that is not empty.

        Raises:
            DataInvalid: it is missing, empty, or no text.
        """
        value = self.value(column)
        if not isinstance(value, str):
            raise self.invalid(column, f"is no text but {_shown(value)}")
        if not value:
            raise self.invalid(column, "is empty")
        return value

    def texts(self, column: str) -> tuple[str, ...]:
        """Return a list of texts, one at least.

        Raises:
            DataInvalid: it is missing, empty, or holds something else.
        """
        values = self.value(column)
        if not isinstance(values, Sequence) or isinstance(values, str) or not values:
            raise self.invalid(column, f"is no list of texts but {_shown(values)}")
        if not all(isinstance(value, str) for value in values):
            raise self.invalid(column, f"has an entry that is no text: {_shown(values)}")
        return tuple(cast(Sequence[str], values))

    def objects(self, column: str) -> tuple[Row, ...]:
        """Return a list of objects as rows of their own, one at least.

        Raises:
            DataInvalid: it is missing, empty, or holds something else.
        """
        values = self.value(column)
        if not isinstance(values, Sequence) or isinstance(values, str) or not values:
            raise self.invalid(column, f"is no list of objects but {_shown(values)}")
        rows = []
        for index, value in enumerate(values):
            if not isinstance(value, Mapping):
                raise self.invalid(f"{column}[{index}]", f"is no object but {_shown(value)}")
            rows.append(Row(f"{self.place}, {column}[{index}]", cast(Mapping[str, object], value)))
        return tuple(rows)

    def choice(self, column: str, allowed: Sequence[object]) -> int:
        """Return the index of a value among those that are allowed; a CSV file has them as text.

        Raises:
            DataInvalid: it is missing or another one.
        """
        value = self.value(column)
        text = str(value).strip().lower()
        for index, candidate in enumerate(allowed):
            if isinstance(value, str | type(candidate)) and text == str(candidate).lower():
                return index
        listed = ", ".join(_shown(candidate) for candidate in allowed)
        raise self.invalid(column, f"is {_shown(value)}, and only these are labels: {listed}")


def _shown(value: object) -> str:
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}..."
