"""Run one method with one seed."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from math import nan
from pathlib import Path

from client_agent.alignment.pack import Pack
from client_agent.errors import CoordinatorStopped
from client_agent.rounds.standalone import train_alone
from client_agent.simulation.admin_client import Operator
from client_agent.simulation.bank_record import BankRecord, read_bank_record
from client_agent.simulation.clients import SharedModels, build_silos
from client_agent.simulation.federated_run import ReportProgress, create_federation, run_federated
from client_agent.simulation.forgetting import Forgetting
from client_agent.simulation.pack_cache import PackCache, read_anchors
from client_agent.simulation.partition import draw_examples
from client_agent.simulation.results import Cell, CellResult, ClientResult, ClientRound
from client_agent.simulation.run_records import (
    RelevanceRecord,
    alignment_of,
    count_texts,
    read_relevance,
)
from client_agent.simulation.shared_files import FolderFiles, SharedFiles
from client_agent.simulation.shared_rates import SharedRates
from client_agent.simulation.study import Study
from client_agent.strategies.base import load_strategy
from client_agent.training.data import SiloData
from client_agent.training.silo import Silo
from schemas.trackers.trackers import NO_TRACKERS, Trackers


@dataclass(slots=True)
class WorkerContext:
    """Shared state of the runs of one process.

    `out` is the folder of their working files, `shared` has the files of all workers; None = in `out`. `draw`
    returns the examples of every silo for a seed.
    """

    study: Study
    out: Path
    operator: Operator | None
    models: SharedModels
    shared: SharedFiles | None = None
    draw: Callable[[Study, int], dict[str, SiloData]] = draw_examples

    @property
    def files(self) -> SharedFiles:
        return self.shared or FolderFiles(self.out)


@dataclass(frozen=True, slots=True)
class _Shown:
    """What a coordinator shows of a run; nothing without one."""

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
    silos = build_silos(context.study, context.draw(context.study, cell.seed), context.models)
    packs = _packs(context, cell, silos, partial(report_progress, 0))
    rates = SharedRates.of(context.files)
    # Models, packs and searched rates are there or not by the order of runs, so their time is not counted.
    began, cpu = time.monotonic(), time.process_time()
    run = _alone if cell.alone else _federated
    clients, shown = run(context, cell, silos, packs, rates, report_progress, trackers)
    wall, spent = time.monotonic() - began, time.process_time() - cpu
    texts = {name: count_texts(silo, cell.plan.training.max_length) for name, silo in silos.items()}
    return CellResult(
        digest=cell.digest,
        method=cell.method,
        seed=cell.seed,
        alone=cell.alone,
        plan=cell.plan,
        clients=[client.model_copy(update={"texts": texts[client.name]}) for client in clients],
        wall_seconds=wall - rates.spent.wall,
        cpu_seconds=spent - rates.spent.cpu,
        search_cpu_seconds=rates.spent.cpu,
        adapters=_adapters(cell),
        bank=shown.bank,
        relevance=shown.relevance,
        alignment=alignment_of(packs),
    ).of(cell)


def _adapters(cell: Cell) -> int:
    """Return how many adapters a client trains, each in all steps of a round."""
    if cell.alone:
        return 1
    strategy = cell.plan.strategy
    return 1 if load_strategy(strategy.name, strategy.options).traits.pull is None else 2


def _packs(
    context: WorkerContext, cell: Cell, silos: dict[str, Silo], report_activity: Callable[[str], None]
) -> dict[str, Pack]:
    """Return the alignment packs of all base models, the pivot's first; none for random frames."""
    study, plan = context.study, cell.plan.alignment
    if plan is None or plan.frames == "random" or study.pivot_model is None or study.anchors is None:
        return {}
    cache = PackCache(context.files, read_anchors(study.anchors).anchors)
    pivot = context.models.at(study.pivot_model)
    in_use = {pivot.slug: pivot} | {silo.base.slug: silo.base for silo in silos.values()}
    return {
        slug: cache.pack(base, pivot, cell.plan.adapter, plan, report_activity)
        for slug, base in in_use.items()
    }


def _alone(
    context: WorkerContext,
    cell: Cell,
    silos: dict[str, Silo],
    packs: dict[str, Pack],
    rates: SharedRates,
    report_progress: ReportProgress,
    trackers: Trackers,
) -> tuple[list[ClientResult], _Shown]:
    total, results = cell.plan.rounds.total, []
    forgetting = _forgetting(context, cell, silos)
    for index, entry in enumerate(context.study.silo):
        silo, rounds = silos[entry.name], []
        pack = packs[silo.base.slug].to_body() if packs else None
        report_progress(index * total // len(silos), entry.name)
        rate, forgot = nan, None
        for round_number, trained in enumerate(
            train_alone(silo, cell.plan, pack, lambda: False, rates, trackers=trackers.named(entry.name)),
            start=1,
        ):
            rounds.append(
                ClientRound(
                    round=round_number,
                    scores=trained.scores,
                    validation=trained.validation,
                    tasks=trained.tasks,
                )
            )
            rate = trained.learning_rate
            if round_number == total and forgetting is not None:
                forgot = forgetting.of(silo.base)  # the adapter is in the model until the iterator ends
            report_progress((index * total + round_number) // len(silos), entry.name)
        results.append(
            ClientResult(
                name=entry.name,
                base_model=silo.base.slug,
                joins_after=entry.joins_after,
                rounds=rounds,
                learning_rate=rate,
                forgetting=forgot,
            )
        )
    return results, _Shown()


def _federated(
    context: WorkerContext,
    cell: Cell,
    silos: dict[str, Silo],
    packs: dict[str, Pack],
    rates: SharedRates,
    report_progress: ReportProgress,
    trackers: Trackers,
) -> tuple[list[ClientResult], _Shown]:
    if context.operator is None:
        raise CoordinatorStopped(
            f"{cell.label} needs a coordinator, and none was started; start the comparison again"
        )
    folder = cell.folder(context.out) / "clients"
    shutil.rmtree(folder, ignore_errors=True)
    anchors = read_anchors(context.study.anchors) if context.study.anchors is not None else None
    forgetting = _forgetting(context, cell, silos)
    with create_federation(
        cell, context.study, silos, context.operator, folder, anchors, rates, trackers
    ) as federation:
        results = run_federated(federation, cell, packs, forgetting, report_progress)
        shown = _Shown(
            read_bank_record(context.operator, federation.path),
            read_relevance(
                context.operator,
                federation.path,
                cell.plan.rounds.total,
                [silo.name for silo in context.study.silo],
            ),
        )
    shutil.rmtree(folder)
    return results, shown


def _forgetting(context: WorkerContext, cell: Cell, silos: dict[str, Silo]) -> Forgetting | None:
    """Measure the bare base models on the study's anchor texts, if it has and counts any."""
    study = context.study
    if study.anchors is None or not study.forgetting:
        return None
    anchors = read_anchors(study.anchors).anchors
    forgetting = Forgetting(anchors, study.forgetting, cell.plan.training.max_length)
    for silo in silos.values():
        forgetting.measure_bare(silo.base)
    return forgetting
