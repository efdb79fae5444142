"""Turn a source of rows into examples."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

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


@dataclass(slots=True)
class _Rows:
    """Count and, where it is allowed, skip the rows that a format refuses."""

    source: str
    columns: Mapping[str, str]
    skip: bool
    count: int = 0
    errors: list[str] = field(default_factory=list)

    def __iter__(self) -> Iterator[Row]:
        for row in rows(self.source):
            self.count += 1
            yield row.renamed(self.columns)


def load_examples(source: str, options: RowOptions = BY_COLUMNS) -> Loaded:
    """Load all examples of a source (`client_agent.data.sources.rows`).

    Raises:
        DataInvalid: the source cannot be read, has no examples, or has a bad row.
    """
    counted = _Rows(source, dict(options.columns), options.skip_bad_rows)
    stream = iter(counted)
    first = next(stream, None)
    if first is None:
        raise DataInvalid(f"{source}: holds no example; write JSON lines with prompt and completion")
    name = options.format or detected(first)
    examples = tuple(_examples(_format(options.format), first, stream, counted))
    if not examples:
        listed = "\n  ".join(counted.errors[:_LISTED])
        raise DataInvalid(f"{source}: none of its {counted.count} rows is an example of {name}:\n  {listed}")
    return Loaded(examples, name, counted.count, tuple(counted.errors))


def _format(name: str | None) -> Format:
    if name is None:
        return per_row(lambda row: ROW_FORMATS[detected(row)](row))
    if name in ROW_FORMATS:
        return per_row(ROW_FORMATS[name])
    if name in template_names():
        return template(name)
    formats = ", ".join([*ROW_FORMATS, *template_names()])
    raise DataInvalid(f"there is no data format {name!r}; there are {formats}")


def _examples(convert: Format, first: Row, stream: Iterator[Row], counted: _Rows) -> Iterator[Example]:
    """Yield examples; rows of one item stay together, as the format has it."""

    def accepted() -> Iterator[Row]:
        row: Row | None = first
        while row is not None:
            if not counted.skip or _is_an_example(convert, row, counted.errors):
                yield row
            row = next(stream, None)

    yield from convert(accepted())


def _is_an_example(convert: Format, row: Row, errors: list[str]) -> bool:
    try:
        return bool(list(convert([row])))
    except DataInvalid as error:
        errors.append(str(error))
        return False
