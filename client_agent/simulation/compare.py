"""A comparison of methods: run the missing cells and collect all results."""

from __future__ import annotations

import fcntl
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from client_agent.errors import FolderInUse, OutputUnwritable
from client_agent.simulation.methods import methods_of
from client_agent.simulation.report.summary import Report, summarise
from client_agent.simulation.results import Cell, CellResult, cells_of, stored_result
from client_agent.simulation.study import Study
from client_agent.simulation.worker_pool import ProgressListener, open_pool
from client_agent.storage.files import write_durably


@dataclass(frozen=True, slots=True)
class Comparison:
    """The cells of a comparison and its output folder."""

    study: Study
    out: Path
    cells: Sequence[Cell]

    @classmethod
    def planned(
        cls, study: Study, out: Path, methods: list[str] | None, seeds: list[int] | None
    ) -> Comparison:
        """Return the comparison, after all checks of the study.

        Raises:
            StudyUnusable: a method, a plan or a pool is invalid.
            ModelNotFound, DataInvalid: files are missing.
        """
        chosen = seeds if seeds is not None else study.seeds
        return cls(study, out, list(cells_of(study, methods_of(study, methods), chosen)))

    @contextmanager
    def claimed(self) -> Iterator[None]:
        """Create and lock the output folder.

        Raises:
            OutputUnwritable: the folder cannot be created or written to.
            FolderInUse: another comparison uses the folder.
        """
        try:
            self.out.mkdir(parents=True, exist_ok=True)
            lock = (self.out / "compare.lock").open("w")
        except OSError as error:
            raise OutputUnwritable(
                f"--out: {self.out} is not a writable folder ({error.strerror}); pass another one"
            ) from error
        with lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise FolderInUse(
                    f"another comparison writes to {self.out}; wait until it ends, or pass another --out"
                ) from None
            yield

    def forget(self) -> None:
        for cell in self.cells:
            shutil.rmtree(cell.folder(self.out), ignore_errors=True)

    def missing(self) -> list[Cell]:
        """Return the cells without a result of exactly this study and code."""
        return [cell for cell in self.cells if stored_result(cell, self.out) is None]

    def results(self) -> list[CellResult]:
        results = (stored_result(cell, self.out) for cell in self.cells)
        return [result for result in results if result is not None]

    def run(self, workers: int, listener: ProgressListener) -> None:
        """Run the missing cells.

        Raises:
            CoordinatorStopped: the coordinator does not become ready.
        """
        missing = self.missing()
        if missing:
            with open_pool(self.study, self.out, missing, listener) as pool:
                pool.run(missing, workers)

    def reported(self, name: str) -> Report:
        missing = [f"{cell.label}: see {cell.log(self.out)}" for cell in self.missing()]
        seeds = list(dict.fromkeys(cell.seed for cell in self.cells))
        report = summarise(self.study, name, seeds, self.results(), missing)
        write_durably(self.out / "report.json", report.model_dump_json(indent=1).encode() + b"\n")
        return report
