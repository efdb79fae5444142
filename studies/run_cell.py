"""Run one method with one seed."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import partial

from client_agent.alignment.pack import Pack
from client_agent.errors import CoordinatorStopped
from client_agent.rounds.strategy import load_strategy
from schemas.trackers.trackers import NO_TRACKERS, Trackers
from studies.bank_record import BankRecord, read_bank_record
from studies.crew import Crew, clients_folder, local_crew
from studies.federated_run import ReportProgress, create_federation, run_federated
from studies.pack_cache import body_for_federation, read_anchors
from studies.results import Cell, CellResult, ClientResult
from studies.run_records import RelevanceRecord, alignment_of, read_relevance
from studies.silo_work import DescribeSilo, MakePack, SiloDescription, TrainAlone
from studies.worker_context import WorkerContext


@dataclass(frozen=True, slots=True)
class _CoordinatorRecords:
    """The records of a run from its coordinator; empty if there is none."""

    bank: BankRecord | None = None
    relevance: list[RelevanceRecord] = field(default_factory=list)


def run_cell(
    context: WorkerContext,
    cell: Cell,
    report_progress: ReportProgress,
    trackers: Trackers = NO_TRACKERS,
) -> CellResult:
    """Run a cell from its beginning; `trackers` record the steps and rounds of each client by its name.

    Raises:
        AgentError: a client or the coordinator failed.
    """
    names = [silo.name for silo in context.study.silo]
    with _crew(context, cell, trackers) as crew:
        # First: it loads the models.
        described = crew.run(names, DescribeSilo())
        packs = _packs(crew, described, partial(report_progress, 0))
        # Models, packs and searched rates are there or not by the order of runs: their time is not counted.
        began, before = time.monotonic(), crew.spent()
        run = _alone if cell.alone else _federated
        clients, shown = run(context, cell, crew, described, packs, report_progress)
        wall, spent = time.monotonic() - began, crew.spent().since(before)
    return CellResult(
        digest=cell.digest,
        method=cell.method,
        seed=cell.seed,
        alone=cell.alone,
        plan=cell.plan,
        clients=[client.model_copy(update={"texts": described[client.name].texts}) for client in clients],
        wall_seconds=wall - spent.search_wall,
        cpu_seconds=spent.cpu - spent.search_cpu,
        search_cpu_seconds=spent.search_cpu,
        adapters=_adapters(cell),
        bank=shown.bank,
        relevance=shown.relevance,
        alignment=alignment_of(packs),
    ).of(cell)


def _crew(context: WorkerContext, cell: Cell, trackers: Trackers) -> AbstractContextManager[Crew]:
    return context.spread(cell) if context.spread is not None else local_crew(context, cell, trackers)


def _adapters(cell: Cell) -> int:
    """Return how many adapters a client trains, each in all steps of a round."""
    if cell.alone:
        return 1
    strategy = cell.plan.strategy
    parts = load_strategy(strategy.name, strategy.options).parts
    return max((part.trained_adapters for part in parts), default=1)


def _packs(
    crew: Crew, described: dict[str, SiloDescription], report_activity: Callable[[str], None]
) -> dict[str, Pack]:
    """Return the alignment packs of all base models, the pivot's first; none for random frames."""

    def report(doing: str, _: int) -> None:
        report_activity(doing)

    (pivot,) = crew.run([next(iter(described))], MakePack(is_pivot=True), report).values()
    if pivot is None:
        return {}
    # One silo of each base model makes its pack for all.
    by_model = {silo.base_model: name for name, silo in described.items()}
    bodies = crew.run(list(by_model.values()), MakePack(), report)
    packs = {slug: body for slug, name in by_model.items() if (body := bodies[name]) is not None}
    first = Pack.from_body(pivot)
    return {first.manifest.base_model: first} | {slug: Pack.from_body(body) for slug, body in packs.items()}


def _alone(
    context: WorkerContext,
    cell: Cell,
    crew: Crew,
    described: dict[str, SiloDescription],
    packs: dict[str, Pack],
    report_progress: ReportProgress,
) -> tuple[list[ClientResult], _CoordinatorRecords]:
    finished = dict.fromkeys(described, 0)

    def report(name: str, rounds: int) -> None:
        finished[name] = max(finished.get(name, 0), rounds)
        report_progress(sum(finished.values()) // len(described), name)

    return list(crew.run(list(described), TrainAlone(), report).values()), _CoordinatorRecords()


def _federated(
    context: WorkerContext,
    cell: Cell,
    crew: Crew,
    described: dict[str, SiloDescription],
    packs: dict[str, Pack],
    report_progress: ReportProgress,
) -> tuple[list[ClientResult], _CoordinatorRecords]:
    if context.operator is None:
        raise CoordinatorStopped(
            f"{cell.label} needs a coordinator, and none was started; start the comparison again"
        )
    folder = clients_folder(context, cell)
    shutil.rmtree(folder, ignore_errors=True)
    anchors = read_anchors(context.study.anchors) if context.study.anchors is not None else None
    federation = create_federation(cell, context.study, crew, context.operator, anchors)
    for slug, pack in packs.items():
        # Uploaded before the start: agents find it, and need no fit of their own.
        body = body_for_federation(pack, federation.id)
        context.operator.put_tensors(f"{federation.path}/alignments/{slug}", body)
    results = run_federated(federation, cell, described, report_progress)
    shown = _CoordinatorRecords(
        read_bank_record(context.operator, federation.path),
        read_relevance(context.operator, federation.path, cell.plan.rounds.total, list(described)),
    )
    shutil.rmtree(folder, ignore_errors=True)
    return results, shown
