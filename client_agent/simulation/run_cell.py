"""Run one method with one seed to its result. Knows no other run and no report."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from client_agent.alignment.pack import Pack
from client_agent.errors import CoordinatorStopped
from client_agent.rounds.standalone import train_alone
from client_agent.simulation.admin_client import Operator
from client_agent.simulation.clients import SharedModels, silos_of
from client_agent.simulation.federated_run import Tell, created, run_federated
from client_agent.simulation.pack_cache import PackCache, read_anchors
from client_agent.simulation.partition import drawn
from client_agent.simulation.results import Cell, CellResult, ClientResult, ClientRound
from client_agent.simulation.study import Study
from client_agent.training.silo import Silo


@dataclass(slots=True)
class Workplace:
    """What the runs of one process have in common."""

    study: Study
    out: Path
    operator: Operator | None
    models: SharedModels


def run_cell(place: Workplace, cell: Cell, tell: Tell) -> CellResult:
    """Run a cell from its beginning.

    Raises:
        AgentError: a client or the coordinator says so.
    """
    silos = silos_of(place.study, drawn(place.study, cell.seed), place.models)
    packs = _packs(place, cell, silos, partial(tell, 0))
    began, cpu = time.monotonic(), time.process_time()  # models and packs may have been there before
    clients = (
        _alone(place, cell, silos, packs, tell) if cell.alone else _federated(place, cell, silos, packs, tell)
    )
    return CellResult(
        digest=cell.digest,
        method=cell.method,
        seed=cell.seed,
        alone=cell.alone,
        plan=cell.plan,
        clients=clients,
        wall_seconds=time.monotonic() - began,
        cpu_seconds=time.process_time() - cpu,
    )


def _packs(
    place: Workplace, cell: Cell, silos: dict[str, Silo], say: Callable[[str], None]
) -> dict[str, Pack]:
    """Give the aligned frames of every base model in use, the pivot's first; random ones cost nothing."""
    study, plan = place.study, cell.plan.alignment
    if plan is None or plan.frames == "random" or study.pivot_model is None or study.anchors is None:
        return {}
    cache = PackCache(place.out / "packs", read_anchors(study.anchors).anchors)
    pivot = place.models.at(study.pivot_model)
    in_use = {pivot.slug: pivot} | {silo.base.slug: silo.base for silo in silos.values()}
    return {slug: cache.pack(base, pivot, cell.plan.adapter, plan, say) for slug, base in in_use.items()}


def _alone(
    place: Workplace, cell: Cell, silos: dict[str, Silo], packs: dict[str, Pack], tell: Tell
) -> list[ClientResult]:
    total, results = cell.plan.rounds.total, []
    for index, entry in enumerate(place.study.silo):
        silo, rounds = silos[entry.name], []
        pack = packs[silo.base.slug].to_body() if packs else None
        for number, trained in enumerate(train_alone(silo, cell.plan, pack, lambda: False), start=1):
            rounds.append(ClientRound(round=number, scores=trained.scores))
            tell((index * total + number) // len(silos), entry.name)
        results.append(
            ClientResult(
                name=entry.name, base_model=silo.base.slug, joins_after=entry.joins_after, rounds=rounds
            )
        )
    return results


def _federated(
    place: Workplace, cell: Cell, silos: dict[str, Silo], packs: dict[str, Pack], tell: Tell
) -> list[ClientResult]:
    if place.operator is None:
        raise CoordinatorStopped(f"{cell.label} needs a coordinator, and none was started")
    folder = cell.folder(place.out) / "clients"
    shutil.rmtree(folder, ignore_errors=True)
    anchors = read_anchors(place.study.anchors) if place.study.anchors is not None else None
    with created(cell, place.study, silos, place.operator, folder, anchors) as federation:
        results = run_federated(federation, cell, packs, tell)
    shutil.rmtree(folder)
    return results
