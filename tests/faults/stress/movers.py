"""A process that moves the payloads of a running federation to an object store, and is killed.

Whenever it is dead, the objects that no payload has are swept, however young: nobody moves meanwhile.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import cycle

from coordinator.db.engine import Database
from coordinator.observability.fault_points import VARIABLE
from coordinator.storage import payload_moves
from tests.faults.stress.kills import OF_MOVES

_PROGRAM = """
import sys, time
from coordinator.db.engine import Database
from coordinator.observability import fault_points
from coordinator.storage import payload_moves
fault_points.arm()
database = Database(sys.argv[1])
while True:
    for size in payload_moves.move(database, sys.argv[2], smallest=1):
        print(size, flush=True)
    time.sleep(0.02)
"""
_ANY_AGE = timedelta(minutes=-1)
MOVED_BEFORE = 4
"""Payloads that a process moves before it dies at the next."""


@dataclass
class Movers:
    """Where movers died, and how many payloads they moved; how many objects were swept after them."""

    died_at: list[str] = field(default_factory=list)
    moved: int = 0
    swept: int = 0
    failures: list[BaseException] = field(default_factory=list)

    def sweep(self, database_url: str, store: str) -> None:
        """Delete the objects that no payload has; nobody must move at the same time."""
        with closing(Database(database_url)) as database:
            self.swept += payload_moves.sweep(database, store, unused=_ANY_AGE)


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
                env=os.environ | {VARIABLE: f"{place}:{MOVED_BEFORE + 1}"},
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
            )
            running[:] = [process]
            printed, _ = process.communicate()
            movers.moved += len(printed.splitlines())
            if process.returncode == -signal.SIGKILL and not stopped.is_set():
                movers.died_at.append(place)
                try:
                    movers.sweep(database_url, store)
                except Exception as error:
                    movers.failures.append(error)
                    return
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
    movers.sweep(database_url, store)
