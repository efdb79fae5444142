"""Turn a source of rows into examples, and split them into sides for good."""

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


def load_examples(
    source: str,
    *,
    row_format: str | None = None,
    columns: Mapping[str, str] | None = None,
    skip_bad_rows: bool = False,
) -> Loaded:
    """Load all examples of a source.

    Args:
        source: see `client_agent.data.sources.rows`.
        row_format: a row format or a task template; None = found from the columns of the first row.
        columns: names that the format expects -> names in the source.
        skip_bad_rows: count rows that are no examples instead of refusing the source.

    Raises:
        DataInvalid: the source cannot be read, has no examples, or has a bad row.
    """
    counted = _Rows(source, columns or {}, skip_bad_rows)
    stream = iter(counted)
    first = next(stream, None)
    if first is None:
        raise DataInvalid(
            f"{source}: holds no example; write one JSON object with prompt and completion per line"
        )
    name = row_format or detected(first)
    examples = tuple(_examples(_format(name), first, stream, counted))
    if not examples:
        listed = "\n  ".join(counted.errors[:_LISTED])
        raise DataInvalid(f"{source}: none of its {counted.count} rows is an example of {name}:\n  {listed}")
    return Loaded(examples, name, counted.count, tuple(counted.errors))


def _format(name: str) -> Format:
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
