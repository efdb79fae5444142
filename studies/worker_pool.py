"""Run cells in worker processes."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Protocol

from client_agent.errors import AgentError
from studies.coordinator_process import quiet_environment, running_coordinator
from studies.results import Cell
from studies.study import Study
from studies.worker_protocol import Order, Progress, RunDone, RunFailed, Setup, news

_STOP_SECONDS = 10.0


class ProgressListener(Protocol):
    """Receives the progress of cells; called from several threads."""

    def started(self, cell: Cell) -> None: ...

    def moved(self, cell: Cell, progress: Progress) -> None: ...

    def ended(self, cell: Cell, failure: str | None) -> None:
        """Called with the reason of a failure, or None."""


Follow = Callable[[Cell], Sequence[Cell]]


class CellQueue:
    """The cells that wait for a worker, and those that follow from the ones that end."""

    def __init__(self, cells: Sequence[Cell], follow: Follow) -> None:
        self.error: BaseException | None = None
        self._follow = follow
        self._cells = deque(cells)
        self._running = 0
        self._changed = threading.Condition()

    def next(self) -> Cell | None:
        """Wait for a cell and return it; None = there is none, and none will follow."""
        with self._changed:
            while not self._cells:
                # Running cells may still add others: a worker waits for these.
                if not self._running:
                    return None
                self._changed.wait()
            self._running += 1
            return self._cells.popleft()

    def end(self, cell: Cell) -> None:
        """Add what follows from a cell that has ended; an error of `follow` ends the run after it."""
        with self._changed:
            try:
                self._cells.extend(self._follow(cell))
            except AgentError as error:
                self.error = error
                self._cells.clear()
            self._running -= 1
            self._changed.notify_all()

    def fail(self, error: BaseException) -> None:
        """End the run with an error that has nothing to do with a cell; cells that run are ended first."""
        with self._changed:
            # The first error is the cause; others follow from it.
            self.error = self.error or error
            self._cells.clear()
            self._running -= 1
            self._changed.notify_all()


@dataclass(slots=True)
class Pool:
    """Worker processes that take cells in turn."""

    setup: Setup
    listener: ProgressListener
    _running: list[subprocess.Popen[str]] = field(default_factory=list)
    _stopped: bool = False

    def run(self, cells: Sequence[Cell], workers: int, follow: Follow = lambda cell: ()) -> None:
        """Run all cells in at most `workers` processes; terminate them on KeyboardInterrupt.

        `follow` returns further cells that can run once a cell has ended; calls of it do not overlap. What
        the listener raises ends the run, and is raised here.
        """
        waiting = CellQueue(cells, follow)
        threads = [
            threading.Thread(target=self._run_queue, args=(waiting,), daemon=True) for _ in range(workers)
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
        if waiting.error is not None:
            raise waiting.error

    def _run_queue(self, waiting: CellQueue) -> None:
        process: subprocess.Popen[str] | None = None
        while not self._stopped and (cell := waiting.next()) is not None:
            try:
                if process is None or process.poll() is not None:
                    process = self._start_worker()
                self.listener.started(cell)
                failure = self._order(process, cell)
                if self._stopped:
                    return
                self.listener.ended(cell, failure)
            except BaseException as error:  # rich exits the thread when a pipe is closed; others wait for it
                waiting.fail(error)
                return
            waiting.end(cell)
        if process is not None:
            _end(process)

    def _start_worker(self) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-m", "studies.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=quiet_environment(OMP_NUM_THREADS="1"),
            text=True,
        )
        self._running.append(process)
        _write(process, self.setup.model_dump_json())
        return process

    def _order(self, process: subprocess.Popen[str], cell: Cell) -> str | None:
        """Run one cell; return the reason of a failure, or None."""
        order = Order(method=cell.method, seed=cell.seed, rate=cell.rate, digest=cell.digest)
        _write(process, order.model_dump_json())
        for line in _lines(process):
            match news.validate_json(line):
                case Progress() as progress:
                    self.listener.moved(cell, progress)
                case RunDone():
                    return None
                case RunFailed(reason=reason):
                    return reason
        return f"its process ended with status {process.wait()}"


@contextmanager
def open_pool(study: Study, out: Path, cells: Sequence[Cell], listener: ProgressListener) -> Iterator[Pool]:
    """Open a pool, with a coordinator if a cell needs one.

    Raises:
        CoordinatorStopped: the coordinator does not become ready.
    """
    if all(cell.alone for cell in cells):
        yield Pool(Setup(study=study, out=out), listener)
        return
    folder = out / "coordinator"
    delete_database(folder)
    with running_coordinator(folder) as running:
        yield Pool(
            Setup(study=study, out=out, url=running.url, token=running.token, coordinator=running.process),
            listener,
        )
    delete_database(folder)


def delete_database(folder: Path) -> None:
    """Delete the database of an earlier coordinator; every run creates its own federation."""
    for file in folder.glob("tessera.db*"):
        file.unlink()


def _write(process: subprocess.Popen[str], line: str) -> None:
    stream: IO[str] | None = process.stdin
    assert stream is not None
    with suppress(BrokenPipeError):  # `_order` reports the exit status
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
