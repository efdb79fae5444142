"""Studies with sampled clients (`rounds.sample`): the participants, and the report."""

from __future__ import annotations

from pathlib import Path

import pytest

from client_agent.errors import StudyUnusable
from client_agent.transport.admin_client import Operator
from schemas.messages.federations import FederationPlan
from studies.clients import SharedModels
from studies.draws import clients_per_round, drawn_in, rounds_by_silo
from studies.methods import methods_of, plan_of
from studies.report.summary import summarise
from studies.report.tables import amounts
from studies.results import cells_of
from studies.run_cell import run_cell
from studies.study import Study
from studies.worker_context import WorkerContext
from tests.scene.coordinator import ADMIN_TOKEN, Served
from tests.scene.studies import result, silo_table, study

NAMES = ["aster", "birch", "cedar"]
STUDY = """
forgetting = 0
[method.everybody]
like = "fedit"
rounds.total = 3
training.steps = 1
[method.half]
like = "everybody"
rounds.sample = 0.5
"""


def three_silos(folder: Path, *silos: str, more: str = STUDY) -> Study:
    return study(folder, *(silos or map(silo_table, NAMES)), more=more)


def planned(read: Study, method: str, seed: int = 0) -> FederationPlan:
    return plan_of(read, methods_of(read, [method])[0], seed, None)


@pytest.mark.parametrize(
    ("sample", "clients"), [(None, 3), (1.0, 3), (0.5, 2), (0.01, 1), (2, 2), (9, 3), (True, 3), ("2", 3)]
)
def test_clients_per_round_follow_from_the_sample(sample: float | str | None, clients: int) -> None:
    assert clients_per_round(sample, 3) == clients


def test_the_sample_depends_on_seed_round_and_names(tmp_path: Path) -> None:
    plan = planned(three_silos(tmp_path), "half")
    assert (plan.rounds.min_clients, plan.rounds.quorum) == (2, 2)
    draws = [drawn_in(plan, number, NAMES) for number in range(1, 30)]
    assert draws == [drawn_in(plan, number, NAMES) for number in range(1, 30)]
    assert all(len(set(draw)) == 2 for draw in draws)
    assert {name for draw in draws for name in draw} == set(NAMES)


@pytest.mark.parametrize(
    ("silos", "more", "refusal"),
    [
        (NAMES, "rounds.sample = 1\nrounds.total = 1\n", "never draw silo .*: raise rounds.total"),
        (NAMES, "rounds.sample = 4\n", "draws 4 of 3 silos"),
        (
            [*NAMES, "late"],
            "rounds.sample = 0.5\n",
            "late joins late: leave rounds.sample or joins_after out",
        ),
        (NAMES, 'rounds.sample = "half"\n', "rounds.sample"),
    ],
)
def test_an_unusable_sample_is_refused(tmp_path: Path, silos: list[str], more: str, refusal: str) -> None:
    tables = [silo_table(name, **({"joins_after": 1} if name == "late" else {})) for name in silos]
    read = three_silos(tmp_path, *tables, more=f'[method.half]\nlike = "fedit"\n{more}')
    with pytest.raises(StudyUnusable, match=refusal):
        planned(read, "half")


@pytest.mark.slow
def test_a_run_has_the_rounds_of_sampled_clients(tmp_path: Path, served: Served) -> None:
    read = three_silos(tmp_path)
    with Operator(served.url, ADMIN_TOKEN) as operator:
        context = WorkerContext(read, tmp_path / "out", operator, SharedModels())
        (cell,) = cells_of(read, methods_of(read, ["half"]), [0])
        half = run_cell(context, cell, lambda rounds, activity: None)
    assert {client.name: len(client.rounds) for client in half.clients} == rounds_by_silo(read, half.plan)
    for number in (1, 2, 3):
        taking = {c.name for c in half.clients for entry in c.rounds if entry.round == number}
        assert taking == set(drawn_in(half.plan, number, NAMES))
        assert len(taking) == 2
    assert all(client.final is not None for client in half.clients)
    losses = {name: [3.0, 2.5, 2.0, 1.5] for name in NAMES}
    unsampled = result("everybody", 0, losses, final=dict.fromkeys(NAMES, 1.5))
    report = summarise(read, "study", [0], [unsampled, half], [])
    assert [method.clients_per_round for method in report.methods] == [None, 2]
    assert "(half: 2 of 3 clients in each round)" in amounts(report)
    assert "everybody" not in amounts(report)
