"""Run cells in worker processes and tell how it goes. Knows no method and no report."""

from __future__ import annotations

import queue
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Protocol

from client_agent.simulation.coordinator_process import quiet_environment, running_coordinator
from client_agent.simulation.results import Cell
from client_agent.simulation.study import Study
from client_agent.simulation.worker_protocol import Done, Failed, Order, Progress, Setup, news

_STOP_SECONDS = 10.0


class Audience(Protocol):
    """Who is told how it goes; called from several threads."""

    def started(self, cell: Cell) -> None:
        """Hear that a cell began."""

    def moved(self, cell: Cell, progress: Progress) -> None:
        """Hear how far a cell is."""

    def ended(self, cell: Cell, failure: str | None) -> None:
        """Hear that a cell is finished, or why it is not."""


@dataclass(slots=True)
class Pool:
    """Workers that share what is to do."""

    setup: Setup
    audience: Audience
    _running: list[subprocess.Popen[str]] = field(default_factory=list)
    _stopped: bool = False

    def run(self, cells: Sequence[Cell], workers: int) -> None:
        """Run all cells, so many at a time; KeyboardInterrupt ends what runs."""
        waiting: queue.SimpleQueue[Cell] = queue.SimpleQueue()
        for cell in cells:
            waiting.put(cell)
        threads = [
            threading.Thread(target=self._work_off, args=(waiting,), daemon=True)
            for _ in range(min(workers, len(cells)))
        ]
        try:
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        finally:
            self._stopped = True
            for process in self._running:
                _end(process)

    def _work_off(self, waiting: queue.SimpleQueue[Cell]) -> None:
        process: subprocess.Popen[str] | None = None
        while not self._stopped:
            try:
                cell = waiting.get_nowait()
            except queue.Empty:
                break
            if process is None or process.poll() is not None:
                process = self._hire()
            self.audience.started(cell)
            failure = self._order(process, cell)
            if self._stopped:
                return
            self.audience.ended(cell, failure)
        if process is not None:
            _end(process)

    def _hire(self) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-m", "client_agent.simulation.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=quiet_environment(OMP_NUM_THREADS="1"),
            text=True,
        )
        self._running.append(process)
        _write(process, self.setup.model_dump_json())
        return process

    def _order(self, process: subprocess.Popen[str], cell: Cell) -> str | None:
        """Have one cell run; give the reason if it failed."""
        _write(process, Order(method=cell.method, seed=cell.seed, digest=cell.digest).model_dump_json())
        for line in _lines(process):
            match news.validate_json(line):
                case Progress() as progress:
                    self.audience.moved(cell, progress)
                case Done():
                    return None
                case Failed(reason=reason):
                    return reason
        return f"its process ended with status {process.wait()}"


@contextmanager
def opened_pool(study: Study, out: Path, cells: Sequence[Cell], audience: Audience) -> Iterator[Pool]:
    """Open a pool; a coordinator runs beside it if one of the cells needs one.

    Raises:
        CoordinatorStopped: the coordinator does not become ready.
    """
    if all(cell.alone for cell in cells):
        yield Pool(Setup(study=study, out=out), audience)
        return
    folder = out / "coordinator"
    _forget_database(folder)
    with running_coordinator(folder) as running:
        yield Pool(
            Setup(study=study, out=out, url=running.url, token=running.token, coordinator=running.process),
            audience,
        )
    _forget_database(folder)


def _forget_database(folder: Path) -> None:
    """Delete what a coordinator kept: every run makes a federation of its own."""
    for file in folder.glob("tessera.db*"):
        file.unlink()


def _write(process: subprocess.Popen[str], line: str) -> None:
    stream: IO[str] | None = process.stdin
    assert stream is not None
    with suppress(BrokenPipeError):  # its silence says the same
        stream.write(line + "\n")
        stream.flush()


def _lines(process: subprocess.Popen[str]) -> IO[str]:
    assert process.stdout is not None
    return process.stdout


def _end(process: subprocess.Popen[str]) -> None:
    process.terminate()
    try:
        process.wait(timeout=_STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    for stream in (process.stdin, process.stdout):
        if stream is not None:
            with suppress(OSError):
                stream.close()
