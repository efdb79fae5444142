"""Turn a source of rows into examples."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from client_agent.console_counts import counted
from client_agent.data.formats import ROW_FORMATS, Format, by_columns, detected, per_row
from client_agent.data.own_template import by_template
from client_agent.data.row import Row
from client_agent.data.sources import rows
from client_agent.data.templates import template, template_names
from client_agent.data.unread_parts import ALL_USED, UnreadParts, refuse_mixed_flags, unused_of
from client_agent.errors import DataInvalid
from client_agent.model.examples import Example
from client_agent.row_template import OWN_TEMPLATE, RowTemplate

_LISTED = 5


@dataclass(frozen=True, slots=True)
class RowOptions:
    """How rows become examples.

    Attributes:
        format: a row format or a task template; None = `template`, or found from the columns of each row.
        columns: (name that the format expects, name in the source), for columns with names of their own.
        skip_bad_rows: count rows that are no examples instead of refusing the source.
        ignored: columns, and keys of turns, that are as if they were not there.
        template: a template of one's own.
    """

    format: str | None = None
    columns: tuple[tuple[str, str], ...] = ()
    skip_bad_rows: bool = False
    ignored: tuple[str, ...] = ()
    template: RowTemplate | None = None

    @property
    def name(self) -> str | None:
        """The name of the format of all rows; None = every row has its own."""
        return OWN_TEMPLATE if self.template is not None else self.format


BY_COLUMNS = RowOptions()
"""Every row's format is found from its columns."""


@dataclass(frozen=True, slots=True)
class SourceExamples:
    """The examples of a source, the errors of rows that were skipped, and what of the rows is not read."""

    examples: tuple[Example, ...]
    format: str
    rows: int
    skipped: tuple[str, ...] = ()
    unused: UnreadParts = ALL_USED


def load_examples(source: str, options: RowOptions = BY_COLUMNS) -> SourceExamples:
    """Load all examples of a source (`client_agent.data.sources.rows`).

    Raises:
        DataInvalid: the source cannot be read, has no examples, has a bad row, or a column that is not read
            and may change what is learnt.
    """
    convert = by_template(options.template) if options.template is not None else _format(options.format)
    errors: list[str] = []
    count = 0
    unused = ALL_USED
    formats: dict[str, None] = {}

    def accepted() -> Iterator[Row]:
        nonlocal count, unused
        for row in counted(rows(source), f"reading {source}"):
            count += 1
            row = replace(row, names=dict(options.columns), ignored=frozenset(options.ignored))
            if options.skip_bad_rows and not _is_an_example(convert, row, options.name, errors):
                continue
            yield row  # the format reads it before it takes the next one
            row_format = options.name or detected(row)
            formats[row_format] = None
            unused |= unused_of(row, row_format)

    examples = tuple(convert(accepted()))  # rows of one item reach the format together
    refuse_mixed_flags(source, unused, options.ignored)
    if not count:
        raise DataInvalid(f"{source}: holds no example; write JSON lines with prompt and completion")
    if not examples:
        listed = "\n  ".join(errors[:_LISTED])
        raise DataInvalid(f"{source}: none of its {count} rows is an example:\n  {listed}")
    return SourceExamples(examples, ", ".join(formats), count, tuple(errors), unused)


def _format(name: str | None) -> Format:
    """Return a format by its name; None finds every row's format from its columns."""
    if name is None:
        return per_row(by_columns)
    if name in ROW_FORMATS:
        return per_row(ROW_FORMATS[name])
    if name in template_names():
        return template(name)
    formats = ", ".join([*ROW_FORMATS, *template_names()])
    raise DataInvalid(f"there is no data format {name!r}; there are {formats}")


def _is_an_example(convert: Format, row: Row, row_format: str | None, errors: list[str]) -> bool:
    try:
        is_example = bool(list(convert([row])))
        unused_of(row, row_format or detected(row))
    except DataInvalid as error:
        errors.append(str(error))
        return False
    return is_example
