"""Run cells in worker processes."""

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


class ProgressListener(Protocol):
    """Receives the progress of cells; called from several threads."""

    def started(self, cell: Cell) -> None: ...

    def moved(self, cell: Cell, progress: Progress) -> None: ...

    def ended(self, cell: Cell, failure: str | None) -> None:
        """Called with the reason of a failure, or None."""


@dataclass(slots=True)
class Pool:
    """Worker processes with a shared queue of cells."""

    setup: Setup
    listener: ProgressListener
    _running: list[subprocess.Popen[str]] = field(default_factory=list)
    _stopped: bool = False

    def run(self, cells: Sequence[Cell], workers: int) -> None:
        """Run all cells in at most `workers` processes; terminate them on KeyboardInterrupt."""
        waiting: queue.SimpleQueue[Cell] = queue.SimpleQueue()
        for cell in cells:
            waiting.put(cell)
        threads = [
            threading.Thread(target=self._run_queue, args=(waiting,), daemon=True)
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

    def _run_queue(self, waiting: queue.SimpleQueue[Cell]) -> None:
        process: subprocess.Popen[str] | None = None
        while not self._stopped:
            try:
                cell = waiting.get_nowait()
            except queue.Empty:
                break
            if process is None or process.poll() is not None:
                process = self._start_worker()
            self.listener.started(cell)
            failure = self._order(process, cell)
            if self._stopped:
                return
            self.listener.ended(cell, failure)
        if process is not None:
            _end(process)

    def _start_worker(self) -> subprocess.Popen[str]:
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
        """Run one cell; return the reason of a failure, or None."""
        _write(process, Order(method=cell.method, seed=cell.seed, digest=cell.digest).model_dump_json())
        for line in _lines(process):
            match news.validate_json(line):
                case Progress() as progress:
                    self.listener.moved(cell, progress)
                case Done():
                    return None
                case Failed(reason=reason):
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
    _delete_database(folder)
    with running_coordinator(folder) as running:
        yield Pool(
            Setup(study=study, out=out, url=running.url, token=running.token, coordinator=running.process),
            listener,
        )
    _delete_database(folder)


def _delete_database(folder: Path) -> None:
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
