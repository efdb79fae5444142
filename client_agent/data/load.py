"""Turn a source of rows into examples."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from client_agent.data.formats import ROW_FORMATS, Format, detected, per_row
from client_agent.data.row import Row
from client_agent.data.sources import rows
from client_agent.data.templates import template, template_names
from client_agent.errors import DataInvalid
from client_agent.model.examples import Example

_LISTED = 5


@dataclass(frozen=True, slots=True)
class RowOptions:
    """How rows become examples.

    Attributes:
        format: a row format or a task template; None = found from the columns of each row.
        columns: (name that the format expects, name in the source), for columns with names of their own.
        skip_bad_rows: count rows that are no examples instead of refusing the source.
    """

    format: str | None = None
    columns: tuple[tuple[str, str], ...] = ()
    skip_bad_rows: bool = False


BY_COLUMNS = RowOptions()
"""Every row's format is found from its columns."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """The examples of a source, and the errors of rows that were skipped."""

    examples: tuple[Example, ...]
    format: str
    rows: int
    skipped: tuple[str, ...] = ()


def load_examples(source: str, options: RowOptions = BY_COLUMNS) -> Loaded:
    """Load all examples of a source (`client_agent.data.sources.rows`).

    Raises:
        DataInvalid: the source cannot be read, has no examples, or has a bad row.
    """
    found_formats: dict[str, None] = {}
    convert = _format(options.format, found_formats)
    errors: list[str] = []
    count = 0

    def accepted() -> Iterator[Row]:
        nonlocal count
        for row in rows(source):
            count += 1
            row = replace(row, names=dict(options.columns))
            if not options.skip_bad_rows or _is_an_example(convert, row, errors):
                yield row

    examples = tuple(convert(accepted()))  # rows of one item reach the format together
    if not count:
        raise DataInvalid(f"{source}: holds no example; write JSON lines with prompt and completion")
    if not examples:
        listed = "\n  ".join(errors[:_LISTED])
        raise DataInvalid(f"{source}: none of its {count} rows is an example:\n  {listed}")
    return Loaded(examples, options.format or ", ".join(found_formats), count, tuple(errors))


def _format(name: str | None, found_formats: dict[str, None]) -> Format:
    """Return a format by its name; None finds every row's format, and notes it in `found_formats`."""
    if name is None:

        def by_columns(row: Row) -> Example:
            row_format = detected(row)
            found_formats[row_format] = None
            return ROW_FORMATS[row_format](row)

        return per_row(by_columns)
    if name in ROW_FORMATS:
        return per_row(ROW_FORMATS[name])
    if name in template_names():
        return template(name)
    formats = ", ".join([*ROW_FORMATS, *template_names()])
    raise DataInvalid(f"there is no data format {name!r}; there are {formats}")


def _is_an_example(convert: Format, row: Row, errors: list[str]) -> bool:
    try:
        return bool(list(convert([row])))
    except DataInvalid as error:
        errors.append(str(error))
        return False
