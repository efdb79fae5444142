"""A comparison of methods: run the missing cells and collect all results."""

from __future__ import annotations

import fcntl
import json
import logging
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from client_agent.errors import FolderInUse, NoResults, OutputUnwritable
from client_agent.simulation.methods import methods_of
from client_agent.simulation.partition_record import describe_partition
from client_agent.simulation.report.summary import Report, summarise
from client_agent.simulation.results import Cell, CellResult, cells_of, stored_result
from client_agent.simulation.streamed_tasks import Report as StreamReport
from client_agent.simulation.streamed_tasks import with_streams
from client_agent.simulation.study import Study
from client_agent.simulation.worker_pool import ProgressListener, open_pool
from client_agent.simulation.worker_protocol import Progress
from client_agent.storage.files import write_durably
from client_agent.storage.prefix_store import PREFIXES
from client_agent.storage.rate_store import RATES

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Comparison:
    """The cells of a comparison and its output folder."""

    study: Study
    out: Path
    cells: Sequence[Cell]

    @classmethod
    def planned(
        cls,
        study: Study,
        out: Path | None,
        methods: list[str] | None,
        seeds: list[int] | None,
        report: StreamReport = log.info,
    ) -> Comparison:
        """Plan the cells of a study, and validate it; `out` is `runs/` and the study's name by default.

        Streams of its sources are read, which `report` is called about, and stored there.

        Raises:
            StudyUnusable: a method, a plan or a pool is invalid.
            ModelNotFound, DataInvalid: files are missing.
        """
        chosen = seeds if seeds is not None else study.seeds
        folder = (out or Path("runs") / study.name).absolute()
        chosen_methods = methods_of(study, methods)
        study = with_streams(study, folder, report)
        return cls(study, folder, list(cells_of(study, chosen_methods, chosen)))

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
        """Delete the results of the cells, and all searched rates: the next run searches them again."""
        shutil.rmtree(self.out / RATES, ignore_errors=True)
        for cell in self.cells:
            shutil.rmtree(cell.folder(self.out), ignore_errors=True)

    @property
    def runs(self) -> list[Cell]:
        """The cells without those that share the run of an earlier one."""
        return list({cell.digest: cell for cell in reversed(self.cells)}.values())[::-1]

    def missing(self) -> list[Cell]:
        """Return the runs without a result of exactly this study and code."""
        return [cell for cell in self.runs if stored_result(cell, self.out) is None]

    def results(self) -> list[CellResult]:
        results = (stored_result(cell, self.out) for cell in self.cells)
        return [result for result in results if result is not None]

    def run(self, workers: int, listener: ProgressListener) -> None:
        """Run the missing cells; once none is missing, the stored layers that they shared are deleted.

        Raises:
            CoordinatorStopped: the coordinator does not become ready.
        """
        missing = self.missing()
        if missing:
            with open_pool(self.study, self.out, missing, listener) as pool:
                pool.run(missing, workers)
        if not self.missing():  # gigabytes that another run would compute again
            shutil.rmtree(self.out / PREFIXES, ignore_errors=True)

    def reported(self) -> Report:
        """Summarise the results that are there, and write report.json, and partition.json: who has what."""
        missing = [f"{cell.label}: see {cell.log(self.out)}" for cell in self.missing()]
        seeds = list(dict.fromkeys(cell.seed for cell in self.cells))
        report = summarise(self.study, self.study.name, seeds, self.results(), missing)
        write_durably(self.out / "report.json", report.model_dump_json(indent=1).encode() + b"\n")
        records = [describe_partition(self.study, seed).model_dump(mode="json") for seed in seeds]
        write_durably(self.out / "partition.json", json.dumps(records, indent=1).encode() + b"\n")
        return report


def simulate(
    study: Study,
    *,
    methods: Sequence[str] | None = None,
    seeds: Sequence[int] | None = None,
    out: Path | str | None = None,
    workers: int | None = None,
    fresh: bool = False,
) -> Report:
    """Run methods with a real coordinator and real agents on this machine, and compare them.

    Safe to interrupt: finished runs are stored, and the same call resumes.

    Args:
        methods, seeds: None = the study's.
        out: the output folder; None = `runs/` and the study's name.
        workers: the number of parallel runs; None = one per core.
        fresh: whether to discard stored results first.

    Raises:
        StudyUnusable: a method or a plan does not work.
        FolderInUse, OutputUnwritable: the output folder cannot be used.
        NoResults: every run failed. A report names the failed runs in `missing`.
    """
    comparison = Comparison.planned(
        study,
        Path(out) if out is not None else None,
        list(methods) if methods is not None else None,
        list(seeds) if seeds is not None else None,
    )
    with comparison.claimed():
        if fresh:
            comparison.forget()
        comparison.run(workers or os.cpu_count() or 1, _LoggedProgress())
        if not comparison.results():
            cell = comparison.cells[0]
            raise NoResults(f"none of {len(comparison.cells)} runs finished; see {cell.log(comparison.out)}")
        return comparison.reported()


class _LoggedProgress:
    """Progress of a comparison in the log."""

    def started(self, cell: Cell) -> None:
        log.info("%s: started", cell.label)

    def moved(self, cell: Cell, progress: Progress) -> None:
        log.debug("%s: round %d %s", cell.label, progress.rounds, progress.doing)

    def ended(self, cell: Cell, failure: str | None) -> None:
        if failure is None:
            log.info("%s: finished", cell.label)
        else:
            log.warning("%s: failed (%s)", cell.label, failure)
