"""Progress of a comparison: bars on a terminal, plain lines elsewhere."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from client_agent.simulation import worker_protocol
from client_agent.simulation.compare import Comparison
from client_agent.simulation.results import Cell, stored_result


class ProgressDisplay:
    """A progress listener with one bar for all runs and one per active run."""

    def __init__(self, console: Console, comparison: Comparison) -> None:
        self._console = console
        self._out = comparison.out
        self._cells = len(comparison.cells)
        self._finished = self._cells - len(comparison.missing())
        self._lock = threading.Lock()
        self._began: dict[str, float] = {}
        self._bars: dict[str, TaskID] = {}
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
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    def started(self, cell: Cell) -> None:
        with self._lock:
            self._began[cell.label] = time.monotonic()
            self._bars[cell.label] = self._progress.add_task(
                cell.label, total=cell.plan.rounds.total, doing="starting"
            )

    def moved(self, cell: Cell, progress: worker_protocol.Progress) -> None:
        with self._lock:
            self._progress.update(self._bars[cell.label], completed=progress.rounds, doing=progress.doing)

    def ended(self, cell: Cell, failure: str | None) -> None:
        """Remove the run's bar and print its result or failure."""
        with self._lock:
            self._progress.remove_task(self._bars.pop(cell.label))
            seconds = time.monotonic() - self._began[cell.label]
            if failure is not None:
                self._line(f"{cell.label} failed: {failure}; see {cell.log(self._out)}")
                return
            self._finished += 1
            self._progress.update(self._all, completed=self._finished)
            self._line(
                f"{cell.label}: {_accuracy(cell, self._out)} in {seconds:.0f} s "
                f"({self._finished} of {self._cells})"
            )

    def _line(self, text: str) -> None:
        self._console.print(text, soft_wrap=True, highlight=False, markup=False)


def _accuracy(cell: Cell, out: Path) -> str:
    result = stored_result(cell, out)
    last = (
        [c.rounds[-1].scores.after.exact_match for c in result.clients if c.joins_after == 0]
        if result
        else []
    )
    return f"mean exact match {sum(last) / len(last):.3f}" if last else "no result"
