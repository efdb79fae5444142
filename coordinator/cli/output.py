"""Print tables, times and sizes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.table import Table


def print_table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    from rich.console import Console

    Console().print(table(columns, rows))


def print_facts(facts: Mapping[str, object]) -> None:
    """Print one fact per line, without line breaks, so that a token can be copied."""
    from rich.console import Console

    console, width = Console(highlight=False), max(map(len, facts), default=0)
    for name, value in facts.items():
        console.print(f"[bold]{name:<{width}}[/]  {text(value)}", soft_wrap=True)


def table(columns: Sequence[str], rows: Iterable[Sequence[object]], *, title: str | None = None) -> Table:
    from rich import box
    from rich.table import Table

    result = Table(box=box.SIMPLE_HEAD, title=title, title_justify="left", padding=(0, 1, 0, 0))
    for position, column in enumerate(columns):
        result.add_column(column, no_wrap=position == 0)  # ids and names must stay in one piece for copying
    for row in rows:
        result.add_row(*(text(value) for value in row))
    return result


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
