"""Compare: run what is not yet run, and gather all results. Decides what is skipped."""

from __future__ import annotations

import fcntl
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from client_agent.errors import FolderInUse, OutputUnwritable
from client_agent.simulation.methods import methods_of
from client_agent.simulation.report.summary import Report, summarised
from client_agent.simulation.results import Cell, CellResult, cells_of, finished
from client_agent.simulation.study import Study
from client_agent.simulation.worker_pool import Audience, opened_pool
from client_agent.storage.files import write_durably


@dataclass(frozen=True, slots=True)
class Comparison:
    """The cells of a comparison, and where they are kept."""

    study: Study
    out: Path
    cells: Sequence[Cell]

    @classmethod
    def planned(
        cls, study: Study, out: Path, methods: list[str] | None, seeds: list[int] | None
    ) -> Comparison:
        """Say what is to be run; everything that can be wrong with a study is found here.

        Raises:
            StudyUnusable: a method, a plan or a pool does not work.
            ModelNotFound, DataInvalid: files are missing.
        """
        chosen = seeds if seeds is not None else study.seeds
        return cls(study, out, list(cells_of(study, methods_of(study, methods), chosen)))

    @contextmanager
    def claimed(self) -> Iterator[None]:
        """Make the folder, and keep other comparisons away from it as long as the block lasts.

        Raises:
            OutputUnwritable: it cannot be made or written to.
            FolderInUse: another comparison is under way there.
        """
        try:
            self.out.mkdir(parents=True, exist_ok=True)
            lock = (self.out / "compare.lock").open("w")
        except OSError as error:
            raise OutputUnwritable(
                f"--out: {self.out} is no folder that can be written to ({error.strerror}); give another"
            ) from error
        with lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise FolderInUse(
                    f"another comparison writes to {self.out}; wait until it ends, or give another --out"
                ) from None
            yield

    def forget(self) -> None:
        """Delete earlier results of these cells."""
        for cell in self.cells:
            shutil.rmtree(cell.folder(self.out), ignore_errors=True)

    def missing(self) -> list[Cell]:
        """Give the cells that have no result of exactly this study and code."""
        return [cell for cell in self.cells if finished(cell, self.out) is None]

    def results(self) -> list[CellResult]:
        """Give the results that are there."""
        found = (finished(cell, self.out) for cell in self.cells)
        return [result for result in found if result is not None]

    def run(self, workers: int, audience: Audience) -> None:
        """Run what is missing.

        Raises:
            CoordinatorStopped: the coordinator does not become ready.
        """
        missing = self.missing()
        if missing:
            with opened_pool(self.study, self.out, missing, audience) as pool:
                pool.run(missing, workers)

    def reported(self, name: str) -> Report:
        """Summarise the results that are there, and write report.json."""
        missing = [f"{cell.label}: see {cell.log(self.out)}" for cell in self.missing()]
        seeds = list(dict.fromkeys(cell.seed for cell in self.cells))
        report = summarised(self.study, name, seeds, self.results(), missing)
        write_durably(self.out / "report.json", report.model_dump_json(indent=1).encode() + b"\n")
        return report
