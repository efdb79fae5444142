"""The control of a bank of experts: the same examples, steps, rate and adapter, trained alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from client_agent.training.data import SiloData
from studies.clients import SharedModels
from studies.crew import SiloHost, local_crew
from studies.methods import control_of, methods_of
from studies.results import Cell, cells_of
from studies.worker_context import WorkerContext
from tests.scene.studies import silo_table, study

TASKS = {"aster": "copy", "birch": "flip", "cedar": "copy", "daisy": "flip", "erica": "copy"}
SILOS = tuple(silo_table(name, task, examples=3) for name, task in TASKS.items())


def data_of(host: SiloHost, name: str) -> SiloData:
    return host.silo(name).data


def examples_by_silo(context: WorkerContext, cell: Cell) -> dict[str, SiloData]:
    """Return what each silo of a run trains on and is scored on."""
    with local_crew(context, cell) as crew:
        return crew.run([silo.name for silo in context.study.silo], data_of)


@pytest.mark.parametrize(("method", "control"), [("fed_vemoe", "local_lora"), ("fed_vemoe_pq", "local")])
def test_banks_and_their_controls_share_plan_and_examples(tmp_path: Path, method: str, control: str) -> None:
    """Defect 10: the reference compared other splits, budgets, rates, and tasks of a client."""
    read = study(tmp_path, *SILOS)
    bank, alone = cells_of(read, methods_of(read, [method, control]), [3])
    assert control_of(read, method, bank.plan) == control
    for part in ("adapter", "training", "scores"):
        assert getattr(bank.plan, part) == getattr(alone.plan, part), part
    assert bank.plan.rounds.total == alone.plan.rounds.total
    context = WorkerContext(read, tmp_path / "out", None, SharedModels())
    examples = examples_by_silo(context, bank)
    assert examples == examples_by_silo(context, alone)
    assert len({data.train for data in examples.values()}) == len(SILOS)
    (other_seed,) = cells_of(read, methods_of(read, [method]), [4])
    assert examples != examples_by_silo(context, other_seed)
    for data in examples.values():
        assert not set(data.test) & {*data.train, *data.validation}
