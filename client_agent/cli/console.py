"""Shared parts of the commands: options, settings, logging, error output and progress bars."""

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

from client_agent.console_counts import counts_shown
from client_agent.errors import AgentError, SettingsUnusable, Stopped
from schemas.command import fail
from schemas.user_files import FileUnusable, complaint, is_blocked

if TYPE_CHECKING:
    from client_agent.settings import AgentSettings


Config = Annotated[
    Path | None,
    typer.Option(
        "--config",
        help="The silo's TOML file, such as silo.toml. Variables TESSERA_AGENT_<OPTION> override its "
        "options, or replace the file.",
        show_default=False,
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]
_INTERRUPTED = 130  # 128 + SIGINT, as in shells


@contextmanager
def clear_errors(*, resumes: bool = False) -> Iterator[None]:
    """Print an `AgentError` without a traceback and exit 1.

    Reading and tokenising show a count on standard error once they take more than five seconds.
    A stop exits 0 if the command `resumes` at its next start, else 130. An interrupt of a command that sets
    no flag for it exits 130.
    """
    try:
        with counts_shown():
            yield
    except Stopped:
        if resumes:
            print("stopped; start the same command again to resume", file=sys.stderr)
            raise typer.Exit(0) from None
        print("stopped before the end; the next start begins from zero", file=sys.stderr)
        raise typer.Exit(_INTERRUPTED) from None
    except KeyboardInterrupt:
        print("interrupted before the end; run the same command again", file=sys.stderr)
        raise typer.Exit(_INTERRUPTED) from None
    except (AgentError, FileUnusable) as error:
        fail(error)
    except OSError as error:
        # Other errors of the operating system are faults of the program, and keep their traceback.
        if not is_blocked(error):
            raise
        fail(complaint(error))


def _log_level() -> str:
    level = os.environ.get("TESSERA_AGENT_LOG_LEVEL", "info").upper()
    if level not in logging.getLevelNamesMapping():
        raise SettingsUnusable(
            "TESSERA_AGENT_LOG_LEVEL has an unknown level; set it to debug, info, warning or error"
        )
    return level


def configure_logging() -> None:
    """Configure logging to standard error, at the level TESSERA_AGENT_LOG_LEVEL, without HTTP requests.

    In a file a line is never wrapped.
    """
    console = Console(stderr=True)
    if console.is_terminal:
        handler: logging.Handler = RichHandler(console=console, show_path=False, omit_repeated_times=False)
        logging.basicConfig(level=_log_level(), format="%(message)s", handlers=[handler])
    else:
        logging.basicConfig(level=_log_level(), format="%(asctime)s %(levelname)-8s %(message)s")
    # httpx logs a line per request, and the agent asks every few seconds.
    logging.getLogger("httpx").setLevel(logging.WARNING)


@contextmanager
def opened_settings(config: Path | None) -> Iterator[AgentSettings]:
    """Yield the settings, with logging configured before the heavy imports."""
    from client_agent.settings import read_settings

    configure_logging()
    yield read_settings(config)


def read_file(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise SettingsUnusable(f"{file} cannot be read ({error.strerror}); check the path") from error


log = logging.getLogger(__name__)


class Bars:
    """Progress: one bar per task on a terminal, a log line per fifth elsewhere."""

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

    def __call__(self, task: str, done: int, total: int) -> None:
        if task not in self._tasks:
            self._tasks[task] = self._bars.add_task(task, total=total)
        self._bars.update(self._tasks[task], completed=done)
        fifths = 5 * done // max(1, total)
        # Bars need a terminal; a log gets a line per fifth.
        if self._bars.disable and fifths > self._fifths.get(task, 0):
            self._fifths[task] = fifths
            log.info("%s: progress (%d of %d)", task, done, total)
