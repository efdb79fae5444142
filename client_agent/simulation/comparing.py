"""Compare: run what is not yet run, and gather all results. Decides what is skipped."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from client_agent.round_folder import write_durably
from client_agent.simulation.methods import methods_of
from client_agent.simulation.pool import Audience, opened_pool
from client_agent.simulation.results import Cell, CellResult, cells_of, finished
from client_agent.simulation.study import Study
from client_agent.simulation.summary import Report, summarised


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
        return cls(study, out, list(cells_of(study, methods_of(study, methods), seeds or study.seeds)))

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
        report = summarised(self.study, name, self.results(), missing)
        write_durably(self.out / "report.json", report.model_dump_json(indent=1).encode() + b"\n")
        return report
