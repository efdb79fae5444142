"""Learning-rate searches that the runs of a comparison share."""

from __future__ import annotations

import fcntl
import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from client_agent.simulation.code_fingerprint import code_of_runs
from client_agent.storage.rate_store import RATES, RateStore

log = logging.getLogger(__name__)


@dataclass(slots=True)
class SearchTime:
    """The seconds that one run spent in searches; `wall` includes waiting for the search of another run."""

    wall: float = 0.0
    cpu: float = 0.0


@dataclass(frozen=True, slots=True)
class SharedRates(RateStore):
    """The searches of a comparison, and the time that this run spent in them.

    Whichever run needs a search first does it, and the others find its result. So its time is no cost of a
    method.
    """

    spent: SearchTime = field(default_factory=SearchTime)

    @classmethod
    def below(cls, out: Path) -> Self:
        """Return the store of an output folder: of exactly this code, as results are."""
        return cls(out / RATES / code_of_runs()[:24])

    @contextmanager
    def searching(self, key: str) -> Iterator[None]:
        """Lock the search of a key, and count its time; the lock of a killed process ends with it."""
        wall, cpu = time.monotonic(), time.process_time()
        self.folder.mkdir(parents=True, exist_ok=True)
        with (self.folder / f"{key}.lock").open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                log.info("learning rate: waiting for the same search of another run")
                fcntl.flock(lock, fcntl.LOCK_EX)
            try:
                yield
            finally:
                self.spent.wall += time.monotonic() - wall
                self.spent.cpu += time.process_time() - cpu
