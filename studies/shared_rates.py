"""Learning-rate searches that the runs of a comparison share."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from client_agent.agent_entries import RATES
from client_agent.storage.rate_store import RateSearch, RateStore, search_from
from studies.code_fingerprint import code_of_runs
from studies.shared_files import SharedFiles

log = logging.getLogger(__name__)


@dataclass(slots=True)
class SearchTime:
    """The seconds that one run spent in searches; `wall` includes waiting for the search of another run."""

    wall: float = 0.0
    cpu: float = 0.0


@dataclass(frozen=True, slots=True)
class SharedRates(RateStore):
    """The searches of a comparison, and the time that this run spent in them.

    The first run that needs a search does it, and the others read its result. So the time of a search is not
    a cost of one method. `folder` is relative to that of `files`.
    """

    files: SharedFiles
    spent: SearchTime = field(default_factory=SearchTime)

    @classmethod
    def of(cls, files: SharedFiles) -> Self:
        """Return the store of a comparison: of exactly this code, as results are."""
        # By the code too: a rate that other code has found is not one of this comparison.
        return cls(Path(RATES) / code_of_runs()[:24], files)

    def read(self, key: str) -> RateSearch:
        content = self.files.read(self._name(key))
        return (search_from(content, Path(self._name(key))) if content else None) or RateSearch()

    def write(self, key: str, search: RateSearch) -> None:
        self.files.write(self._name(key), search.model_dump_json().encode())

    @contextmanager
    def searching(self, key: str) -> Iterator[None]:
        """Lock the search of a key, and count its time; the lock of a killed process ends with it."""
        wall, cpu = time.monotonic(), time.process_time()
        with self.files.locked(
            str(self.folder / key),
            lambda: log.info("learning rate: waiting for the same search of another run"),
        ):
            try:
                yield
            finally:
                # Also after an error, since the time is gone.
                self.spent.wall += time.monotonic() - wall
                self.spent.cpu += time.process_time() - cpu

    def _name(self, key: str) -> str:
        return f"{self.folder / key}.json"
