"""A process that moves all payloads of a federation in progress to an object store, and is killed at it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import cycle

from coordinator.observability.fault_points import VARIABLE
from tests.stress.kills import OF_MOVES

_PROGRAM = """
import sys, time
from coordinator.db.engine import Database
from coordinator.observability import fault_points
from coordinator.storage import moving
fault_points.arm()
database = Database(sys.argv[1])
while True:
    for size in moving.move(database, sys.argv[2], smallest=1):
        print(size, flush=True)
    time.sleep(0.02)
"""
_FIFTH = 5
"""The pass at which it dies, so that some payloads have moved before."""


@dataclass
class Movers:
    """Where movers died, and how many payloads they moved."""

    died_at: list[str] = field(default_factory=list)
    moved: int = 0


@contextmanager
def moving_everything(database_url: str, store: str) -> Iterator[Movers]:
    """Move payloads of any age and size for the duration of a block, in processes that are killed."""
    movers, stopped = Movers(), threading.Event()
    running: list[subprocess.Popen[str]] = []

    def keep_moving() -> None:
        for place in cycle(OF_MOVES):
            if stopped.is_set():
                return
            process = subprocess.Popen(
                [sys.executable, "-c", _PROGRAM, database_url, store],
                env=os.environ | {VARIABLE: f"{place}:{_FIFTH}"},
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
            )
            running[:] = [process]
            printed, _ = process.communicate()
            movers.moved += len(printed.splitlines())
            if process.returncode == -signal.SIGKILL and not stopped.is_set():
                movers.died_at.append(place)
            stopped.wait(0.2)  # before the coordinator has made the tables it fails at once

    thread = threading.Thread(target=keep_moving, name="mover", daemon=True)
    thread.start()
    try:
        yield movers
    finally:
        stopped.set()
        for process in running:
            process.terminate()
        thread.join()
