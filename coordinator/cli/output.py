"""Print tables, times and sizes."""

from __future__ import annotations

import textwrap
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.table import Table


def print_table(
    columns: Sequence[str], rows: Iterable[Sequence[object]], *, whole: Collection[str] = ()
) -> None:
    """Print a table; `whole` columns are never wrapped, and a narrow terminal cuts words of the others."""
    from rich.console import Console

    Console().print(table(columns, rows, whole=whole))


def print_facts(facts: Mapping[str, object]) -> None:
    """Print one fact per line; a terminal gets sentences wrapped, and tokens in one piece for copying."""
    from rich.console import Console

    console, width = Console(highlight=False), max(map(len, facts), default=0)
    for name, value in facts.items():
        content = text(value)
        if console.is_terminal:
            content = wrapped(content, console.width - width - 2, indent=" " * (width + 2))
        console.print(f"[bold]{name:<{width}}[/]  {content}", soft_wrap=True)


def wrapped(content: str, width: int, *, indent: str = "") -> str:
    """Return text in lines of a width, broken at spaces only; lines after the first are indented."""
    lines = textwrap.wrap(content, max(width, 20), break_long_words=False, break_on_hyphens=False)
    return f"\n{indent}".join(lines)


def table(
    columns: Sequence[str],
    rows: Iterable[Iterable[object]],
    *,
    title: str | None = None,
    whole: Collection[str] = (),
) -> Table:
    from rich import box
    from rich.table import Table

    result = Table(box=box.SIMPLE_HEAD, title=title, title_justify="left", padding=(0, 1, 0, 0))
    cells = [[text(value) for value in row] for row in rows]
    for position, column in enumerate(columns):
        is_numeric = _are_numbers(row[position] for row in cells)
        # Ids must stay in one piece for copying; other long words continue on the next line, uncut.
        result.add_column(
            column,
            no_wrap=position == 0 or column in whole,
            overflow="ellipsis" if whole else "fold",
            justify="right" if is_numeric else "left",
        )
    for line in cells:
        result.add_row(*line)
    return result


def _are_numbers(cells: Iterable[str]) -> bool:
    return all(cell == "-" or (cell[:1].isdigit() and " " not in cell) for cell in cells)


def fitting_table(
    columns: Sequence[str],
    rows: Iterable[Sequence[object]],
    *,
    optional: Sequence[str],
    title: str | None = None,
) -> Table:
    """Return a table that the terminal is wide enough for.

    `optional` columns are dropped: first all without any value, then in their order, until the rest fits.
    """
    from rich.console import Console
    from rich.measure import Measurement

    console = Console()
    cells = [tuple(row) for row in rows]
    values_by_column = {name: [row[place] for row in cells] for place, name in enumerate(columns)}
    for name in optional:
        if cells and all(value in (None, "-") for value in values_by_column[name]):
            del values_by_column[name]
    while True:
        result = table([*values_by_column], zip(*values_by_column.values(), strict=True), title=title)
        removable = [name for name in optional if name in values_by_column]
        width = Measurement.get(console, console.options.update(width=1000), result).maximum
        if width <= console.width or not removable:
            return result
        del values_by_column[removable[0]]


def text(value: object) -> str:
    """Return a value as people read it."""
    from rich.markup import escape

    from schemas.messages.names import printable

    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.4g}"
    return escape(printable(str(value)))


def ago(time: str | None) -> str:
    if time is None:
        return "never"
    seconds = (datetime.now(UTC) - datetime.fromisoformat(time)).total_seconds()
    return f"{span(max(0.0, seconds))} ago"


def until(time: str | None) -> str:
    if time is None:
        return "-"
    seconds = (datetime.fromisoformat(time) - datetime.now(UTC)).total_seconds()
    return f"in {span(seconds)}" if seconds > 0 else "passed"


def span(seconds: float) -> str:
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"


def size(count: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"


def traffic(value: Mapping[str, Any]) -> str:
    return f"{size(value['up'])} up, {size(value['down'])} down"
