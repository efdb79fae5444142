"""The engines that run a comparison: processes of this machine, or a Ray cluster."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from studies.results import Cell
from studies.study import Study
from studies.worker_pool import Follow, ProgressListener, open_pool


class Engine(Protocol):
    """Runs cells. Results and logs are in the output folder afterwards; a failed cell has no result."""

    @property
    def workers(self) -> int:
        """The number of parallel runs."""

    def run(
        self, study: Study, out: Path, cells: Sequence[Cell], listener: ProgressListener, follow: Follow
    ) -> None:
        """Run all cells and those that follow from the ones that end.

        Everything that was started ends with the call, on KeyboardInterrupt too.

        Raises:
            CoordinatorStopped: the coordinator does not become ready.
            EngineUnusable: the engine cannot run this study.
        """


@dataclass(frozen=True, slots=True)
class ProcessEngine:
    """Worker processes on this machine."""

    workers: int

    def run(
        self, study: Study, out: Path, cells: Sequence[Cell], listener: ProgressListener, follow: Follow
    ) -> None:
        with open_pool(study, out, cells, listener) as pool:
            pool.run(cells, self.workers, follow)
