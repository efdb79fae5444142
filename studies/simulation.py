"""Comparisons from Python: `simulate` runs the methods of a study."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from client_agent.errors import NoResults
from studies.compare import Comparison
from studies.engines import Engine, ProcessEngine
from studies.progress import ProgressDisplay
from studies.report.shown import Report
from studies.results import Cell
from studies.study import Study
from studies.worker_protocol import Progress

log = logging.getLogger(__name__)


def simulate(
    study: Study,
    *,
    methods: Sequence[str] | None = None,
    seeds: Sequence[int] | None = None,
    out: Path | str | None = None,
    workers: int | None = None,
    engine: Engine | None = None,
    fresh: bool = False,
    progress: bool = True,
) -> Report:
    """Run methods with a real coordinator and real agents, and compare them.

    Safe to interrupt: finished runs are stored, and the same call resumes.

    Args:
        methods, seeds: None = the study's.
        out: the output folder; None = `runs/` and the study's name.
        workers: the number of parallel runs; None = one per core.
        engine: where they run, such as a `RayEngine`; None = in `workers` processes of this machine.
        fresh: whether to discard stored results first.
        progress: whether to show progress on standard error; otherwise runs are logged.

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
    chosen = engine or ProcessEngine(workers or os.cpu_count() or 1)
    with comparison.claimed():
        if fresh:
            comparison.forget()
        if progress:
            with ProgressDisplay(Console(stderr=True), comparison, chosen.workers) as display:
                comparison.run(chosen, display)
        else:
            comparison.run(chosen, _LoggedProgress())
        if not comparison.results():
            cell = comparison.runs[0]
            raise NoResults(f"none of {len(comparison.runs)} runs finished; see {cell.log(comparison.out)}")
        return Report.of(comparison.reported())


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
