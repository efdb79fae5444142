"""What commands share: options, settings, logs, errors that name a remedy, progress bars.

Heavy libraries are imported when a command runs.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Annotated, Self

import typer
from rich.console import Console
from rich.logging import RichHandler
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.text import Text

from client_agent.errors import AgentError, SettingsUnusable, Stopped

if TYPE_CHECKING:
    from client_agent.settings import AgentSettings


Config = Annotated[
    Path | None,
    typer.Option(
        "--config",
        help="The silo's TOML file. Every option can also be set as TESSERA_AGENT_<OPTION>.",
        show_default=False,
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]
_INTERRUPTED = 130  # as shells have it: 128 + SIGINT


@contextmanager
def clear_errors(*, resumes: bool = False) -> Iterator[None]:
    """Print what went wrong and what to do; a traceback helps nobody in a silo.

    `resumes` says that the command, once stopped, goes on where it was at its next start: only then is a
    stop no failure.
    """
    try:
        yield
    except Stopped:
        if resumes:
            print("stopped; what was under way resumes at the next start", file=sys.stderr)
            raise typer.Exit(0) from None
        print("stopped before the end; the next start begins anew", file=sys.stderr)
        raise typer.Exit(_INTERRUPTED) from None
    except AgentError as error:
        said = Text.assemble(("error: ", "red"), str(error))
        Console(stderr=True, highlight=False).print(said, soft_wrap=True)
        raise typer.Exit(1) from error


def _log_level() -> str:
    level = os.environ.get("TESSERA_AGENT_LOG_LEVEL", "info").upper()
    if level not in logging.getLevelNamesMapping():
        raise SettingsUnusable("TESSERA_AGENT_LOG_LEVEL must be debug, info, warning or error")
    return level


def be_quiet() -> None:
    """Log what TESSERA_AGENT_LOG_LEVEL says to standard error, and no request."""
    logging.basicConfig(
        level=_log_level(),
        format="%(message)s",
        handlers=[RichHandler(console=Console(stderr=True), show_path=False, omit_repeated_times=False)],
    )
    logging.getLogger("httpx").setLevel(logging.WARNING)


@contextmanager
def opened_settings(config: Path | None) -> Iterator[AgentSettings]:
    """Read the settings, and be quiet and offline-friendly from before the heavy imports on."""
    from client_agent.settings import read_settings

    be_quiet()
    yield read_settings(config)


def read_file(file: Path) -> bytes:
    """Read a file that an option names.

    Raises:
        SettingsUnusable: it cannot be read.
    """
    try:
        return file.read_bytes()
    except OSError as error:
        raise SettingsUnusable(f"{file} cannot be read: {error.strerror}") from error


log = logging.getLogger(__name__)


class Bars:
    """A bar for each kind of work on a terminal, a few plain lines elsewhere."""

    def __init__(self) -> None:
        console = Console(stderr=True)
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        self._bars = Progress(*columns, console=console, disable=not console.is_terminal)
        self._tasks: dict[str, TaskID] = {}
        self._fifths: dict[str, int] = {}

    def __enter__(self) -> Self:
        self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bars.stop()

    def __call__(self, what: str, done: int, total: int) -> None:
        """Show how far something is."""
        if what not in self._tasks:
            self._tasks[what] = self._bars.add_task(what, total=total)
        self._bars.update(self._tasks[what], completed=done)
        fifths = 5 * done // max(1, total)
        if self._bars.disable and fifths > self._fifths.get(what, 0):
            self._fifths[what] = fifths
            log.info("%s: %d of %d", what, done, total)
