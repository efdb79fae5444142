"""A comparison of methods: run the missing cells and collect all results."""

from __future__ import annotations

import fcntl
import json
import logging
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from client_agent.agent_entries import PREFIXES, RATES
from client_agent.errors import FolderInUse, OutputUnwritable, StudyUnusable
from client_agent.storage.files import write_durably
from schemas.trackers.options import TrackerMissing
from studies.engines import Engine
from studies.fair import require_control, require_equal_adapters, with_fair_rules
from studies.fair_search import FairSearch
from studies.methods import Method, methods_of, require_equal_training
from studies.partition_record import describe_partition
from studies.report.runs import RunCost, cost_of
from studies.report.summary import Report, summarise
from studies.results import Cell, CellPlanner, CellResult, has_diverged, stored_result
from studies.streamed_tasks import Report as StreamReport
from studies.streamed_tasks import with_streams
from studies.study import Study
from studies.worker_pool import Follow, ProgressListener

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Comparison:
    """The runs of a comparison and its output folder.

    A fair comparison first searches a learning rate for each method; its other runs are planned once the
    rates are known.
    """

    study: Study
    out: Path
    methods: list[Method]
    seeds: list[int]
    planner: CellPlanner
    search: FairSearch | None = None

    @classmethod
    def planned(
        cls,
        study: Study,
        out: Path | None,
        methods: list[str] | None,
        seeds: list[int] | None,
        report: StreamReport = log.info,
    ) -> Comparison:
        """Plan the runs of a study, and validate it; `out` is `runs/` and the study's name by default.

        Streams of its sources are read, which `report` is called about, and stored there.

        Raises:
            StudyUnusable: a method, a plan or a pool is invalid, a fair comparison is not possible, or a
                tracker is not installed.
            ModelNotFound, DataInvalid: files are missing.
        """
        chosen = seeds if seeds is not None else study.seeds
        folder = (out or Path("runs") / study.name).absolute()
        try:
            # Before anything is read or run.
            study.trackers(folder).require_installed()
        except TrackerMissing as missing:
            raise StudyUnusable(f"report_to: {missing}") from None
        study = with_streams(study, folder, report)
        study = with_fair_rules(study, chosen)
        chosen_methods = methods_of(study, methods)
        planner = CellPlanner(study)
        # All plans are validated before the first run.
        plans = {method.name: planner.cell(method, seed).plan for seed in chosen for method in chosen_methods}
        require_equal_training(plans)
        if study.fair is None:
            return cls(study, folder, chosen_methods, chosen, planner)
        require_equal_adapters(plans)
        require_control(study, plans)
        search = FairSearch(study.fair, folder, planner)
        return cls(study, folder, chosen_methods, chosen, planner, search)

    @property
    def cells(self) -> list[Cell]:
        """The cells that are reported, as far as they can be planned: every (method, seed), seed by seed."""
        return [
            self.planner.cell(method, seed, rate)
            for seed in self.seeds
            for method, rate in self._planned_methods()
        ]

    def _planned_methods(self) -> list[tuple[Method, float | None]]:
        if self.search is None:
            return [(method, None) for method in self.methods]
        rates = ((method, self.search.rate(method)) for method in self.methods)
        return [(method, rate) for method, rate in rates if rate is not None]

    @property
    def searches(self) -> list[Cell]:
        """The runs of the search of rates, as far as they can be planned."""
        return self.search.runs(self.methods) if self.search is not None else []

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
                # flock ends with the process, so a killed comparison leaves no stale lock.
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise FolderInUse(
                    f"another comparison writes to {self.out}; wait until it ends, or pass another --out"
                ) from None
            yield

    def forget(self) -> None:
        """Delete the results of the cells, and all searched rates: the next run searches them again."""
        shutil.rmtree(self.out / RATES, ignore_errors=True)
        for cell in (*self.searches, *self.cells):
            shutil.rmtree(cell.folder(self.out), ignore_errors=True)
        if self.search is not None:
            self.search.forget()

    @property
    def runs(self) -> list[Cell]:
        """The searches and cells without those that share the run of an earlier one."""
        cells = [*self.searches, *self.cells]
        # Of cells with one digest the first one: reversed, since later entries of a dict replace earlier
        # ones.
        return list({cell.digest: cell for cell in reversed(cells)}.values())[::-1]

    @property
    def later(self) -> int:
        """The estimated number of runs that are not planned yet, while rates are unknown."""
        return (len(self.methods) - len(self._planned_methods())) * (len(self.seeds) + 1)

    def missing(self) -> list[Cell]:
        """Return the runs without a result of exactly this study and code."""
        return [cell for cell in self.runs if not self._has_ended(cell)]

    def _has_ended(self, cell: Cell) -> bool:
        is_search = self.search is not None and cell.seed not in self.seeds
        # A rate that diverges is a result of a search, and a failure of a reported run.
        return stored_result(cell, self.out) is not None or (is_search and has_diverged(cell, self.out))

    def results(self) -> list[CellResult]:
        results = (stored_result(cell, self.out) for cell in self.cells)
        return [result for result in results if result is not None]

    def run(self, engine: Engine, listener: ProgressListener) -> None:
        """Run the missing cells; once none is missing, the stored layers that they shared are deleted.

        Raises:
            CoordinatorStopped: the coordinator does not become ready.
            EngineUnusable: the engine cannot run the study.
        """
        missing = self.missing()
        if missing:
            follow = self._follow({cell.digest for cell in missing})
            engine.run(self.study, self.out, missing, listener, follow)
        if not self.missing():  # gigabytes that another run would compute again
            shutil.rmtree(self.out / PREFIXES, ignore_errors=True)

    def _follow(self, ordered: set[str]) -> Follow:
        """Return a callback for the end of a run, which plans the runs that follow from its result."""

        def follow(cell: Cell) -> list[Cell]:
            if self.search is None or cell.seed in self.seeds:
                return []
            # A search may ask for a cell that another worker has.
            new = [cell for cell in self.missing() if cell.digest not in ordered]
            ordered.update(cell.digest for cell in new)
            return new

        return follow

    def reported(self) -> Report:
        """Summarise the results on disk, and write report.json and partition.json, the data of silos."""
        missing = [f"{cell.label}: see {cell.log(self.out)}" for cell in self.missing()]
        seeds, search = self.seeds, self.search
        report = summarise(
            self.study,
            self.study.name,
            seeds,
            self.results(),
            missing,
            trials={method.name: search.trials(method) for method in self.methods} if search else {},
            costs=self._costs(),
        )
        write_durably(self.out / "report.json", report.model_dump_json(indent=1).encode() + b"\n")
        records = [describe_partition(self.study, seed).model_dump(mode="json") for seed in seeds]
        write_durably(self.out / "partition.json", json.dumps(records, indent=1).encode() + b"\n")
        return report

    def _costs(self) -> list[RunCost]:
        results = ((cell, stored_result(cell, self.out)) for cell in self.runs)
        return [
            cost_of(result, cell.rate, search=cell.seed not in self.seeds)
            for cell, result in results
            if result is not None
        ]
