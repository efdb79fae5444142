"""A line with a count where loading or tokenising takes more than a few seconds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from time import monotonic
from typing import TypeVar

from rich.console import Console
from rich.live import Live
from rich.text import Text

Item = TypeVar("Item")


@dataclass(frozen=True, slots=True)
class Pace:
    """When lines appear, in seconds.

    Attributes:
        first: after work began.
        line: between two lines of a file or a pipe.
        update: between two updates of the line on a terminal.
    """

    first: float = 5.0
    line: float = 10.0
    update: float = 0.5


DEFAULT_PACE = Pace()
_PAUSE = 2.0


class _Display:
    """Lines on a console. Work that follows within two seconds continues the wait for the first line."""

    def __init__(self, console: Console, pace: Pace, clock: Callable[[], float]) -> None:
        self._console, self._pace, self._clock = console, pace, clock
        self._due = self._ended = float("-inf")
        self._live: Live | None = None

    def counted(self, items: Iterable[Item], label: str, total: int | None) -> Iterator[Item]:
        start = self._clock()
        if start - self._ended > _PAUSE:
            self._due = start + self._pace.first
        of = f" of {total:,}" if total is not None else ""
        try:
            for count, item in enumerate(items):
                if (now := self._clock()) >= self._due:
                    self._show(f"{label}: {count:,}{of}")
                    self._due = now + (self._pace.update if self._console.is_terminal else self._pace.line)
                yield item
        finally:
            self._ended = self._clock()
            self.close()

    def close(self) -> None:
        """Remove the line from a terminal."""
        if self._live is not None:
            self._live.stop()
            self._live = None

    def _show(self, line: str) -> None:
        if not self._console.is_terminal:
            self._console.print(line, soft_wrap=True, markup=False, highlight=False)
            return
        if self._live is None:
            self._live = Live(console=self._console, transient=True, auto_refresh=False)
            self._live.start()
        self._live.update(Text(line), refresh=True)


_display: ContextVar[_Display | None] = ContextVar("display", default=None)


@contextmanager
def counts_shown(
    console: Console | None = None, pace: Pace = DEFAULT_PACE, clock: Callable[[], float] = monotonic
) -> Iterator[None]:
    """Show the counts of `counted` while this context is open, by default on standard error."""
    display = _Display(console or Console(stderr=True), pace, clock)
    token = _display.set(display)
    try:
        yield
    finally:
        display.close()  # an error leaves a count before its end
        _display.reset(token)


def counted(items: Iterable[Item], label: str, total: int | None = None) -> Iterator[Item]:
    """Yield items, and show how many there were if it takes long and `counts_shown` is open."""
    display = _display.get()
    return iter(items) if display is None else display.counted(items, label, total)
