"""Progress of a comparison: bars on a terminal, plain lines elsewhere."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import fmean
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from client_agent.rounds.examine import few_validation
from schemas.messages.scores import LOSS
from studies import worker_protocol
from studies.compare import Comparison
from studies.outcomes import rules_of, state_by
from studies.remaining_time import every_minute, minutes_of
from studies.results import Cell, stored_result

_QUIET_SECONDS = 15.0


class ProgressDisplay:
    """A progress listener with one bar for all runs and one per active run."""

    def __init__(self, console: Console, comparison: Comparison, workers: int = 1) -> None:
        self._console = console
        self._out = comparison.out
        missing, later = comparison.missing(), comparison.later
        self._finished = len(comparison.runs) - len(missing)
        self._unplanned = later
        self._cells = self._finished + len(missing) + later
        self._opening = _opening(comparison, missing, workers)
        self._rounds_planned = _rounds(missing, later)
        self._planned = {cell.digest for cell in missing}
        self._rounds_done = 0
        self._opened = time.monotonic()
        self._background = ExitStack()
        self._lock = threading.Lock()
        self._began: dict[str, float] = {}
        self._bars: dict[str, TaskID] = {}
        self._rounds: dict[str, int] = {}
        self._printed: dict[str, float] = {}
        self._progress = Progress(
            TextColumn("{task.description:<36}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[doing]}"),
            console=console,
            disable=not console.is_terminal,
        )
        self._all = self._progress.add_task("runs", total=self._cells, completed=self._finished, doing="")

    def __enter__(self) -> Self:
        if self._finished:
            self._line(f"{self._finished} of {self._cells} runs were already finished")
        for line in self._opening:
            self._line(line)
        self._progress.start()
        self._background.enter_context(every_minute(self.print_time_left))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._background.close()
        self._progress.stop()

    def print_time_left(self) -> None:
        """Print which run this is, and how long all still take at the pace of the rounds so far."""
        with self._lock:
            done = self._rounds_done + sum(self._rounds[label] for label in self._bars)
            place = f"run {min(self._finished + 1, self._cells)} of {self._cells}"
            if not done:
                self._line(f"{place}: no round has ended yet")
                return
            # By rounds: runs differ in length, and several are in progress.
            seconds = (time.monotonic() - self._opened) / done * (self._rounds_planned - done)
            self._line(f"{place}: {minutes_of(seconds)} left")

    def started(self, cell: Cell) -> None:
        with self._lock:
            self._began[cell.label] = time.monotonic()
            self._rounds[cell.label] = 0
            self._count(cell)
            self._printed[cell.label] = time.monotonic()
            self._bars[cell.label] = self._progress.add_task(
                cell.label, total=cell.plan.rounds.total, doing="starting"
            )
            if not self._console.is_terminal:
                self._line(f"{cell.label}: started")

    def _count(self, cell: Cell) -> None:
        """Count a run that was not planned at the start, unless it is one of those that were expected."""
        if cell.digest in self._planned:
            return
        self._planned.add(cell.digest)
        if self._unplanned:
            self._unplanned -= 1
            return
        self._cells += 1
        self._rounds_planned += cell.plan.rounds.total
        self._progress.update(self._all, total=self._cells)

    def moved(self, cell: Cell, progress: worker_protocol.Progress) -> None:
        with self._lock:
            self._progress.update(self._bars[cell.label], completed=progress.rounds, doing=progress.doing)
            self._print_movement(cell.label, progress)
            self._rounds[cell.label] = progress.rounds

    def _print_movement(self, label: str, progress: worker_protocol.Progress) -> None:
        """Print a new round at once, and between rounds now and then what the run does."""
        now = time.monotonic()
        moved = progress.rounds != self._rounds[label]
        # A log of a file would be long with a line for every step.
        quiet = now - self._printed[label] < _QUIET_SECONDS
        if self._console.is_terminal or (not moved and (quiet or not progress.doing)):
            return
        doing = f"; {progress.doing}" if progress.doing else ""
        self._line(f"{label}: {progress.rounds} of {progress.total} rounds{doing}")
        self._printed[label] = now

    def ended(self, cell: Cell, failure: str | None) -> None:
        """Remove the run's bar and print its result or failure."""
        with self._lock:
            self._progress.remove_task(self._bars.pop(cell.label))
            # Failed runs too: their rounds do not come any more.
            self._rounds_done += cell.plan.rounds.total
            seconds = time.monotonic() - self._began[cell.label]
            if failure is not None:
                self._line(f"{cell.label} failed: {failure}; see {cell.log(self._out)}")
                return
            self._finished += 1
            self._progress.update(self._all, completed=self._finished)
            self._line(
                f"{cell.label}: {_loss(cell, self._out)} in {seconds:.0f} s "
                f"({self._finished} of {self._cells})"
            )

    def _line(self, text: str) -> None:
        self._console.print(text, soft_wrap=True, highlight=False, markup=False)


def _opening(comparison: Comparison, missing: Sequence[Cell], workers: int) -> list[str]:
    """Return what to expect of the missing runs: their time, and what the study's data do not allow."""
    if not missing:
        return []
    later = comparison.later
    rounds = _rounds(missing, later)
    paces = [result.wall_seconds / result.plan.rounds.total for result in comparison.results()]
    measured = f"{minutes_of(fmean(paces) * rounds / workers)}, as the finished ones took" if paces else None
    time_needed = measured or "the time left follows every minute, once a round has ended"
    count = f"{len(missing)} runs" if not later else f"{len(missing)} runs, and {later} later"
    lines = [f"{count}, {rounds} rounds in all, on {workers} workers: {time_needed}"]
    if (few := few_validation(comparison.study.validation)) is not None:
        lines.append(f"every silo: {few}")
    return lines


def _rounds(missing: Sequence[Cell], later: int) -> int:
    """Return the number of rounds of the missing runs, and of as many later ones that are not planned yet."""
    rounds = [cell.plan.rounds.total for cell in missing]
    return sum(rounds) + (round(later * fmean(rounds)) if rounds else 0)


def _loss(cell: Cell, out: Path) -> str:
    """Format the founders' mean test loss by the rule that the run's data allow."""
    result = stored_result(cell, out)
    if result is None:
        return "no result"
    rule = rules_of([result])[0]
    losses = [state_by(rule, c).scores[LOSS].value for c in result.clients if c.joins_after == 0]
    return f"mean test loss {sum(losses) / len(losses):.3f}"
