"""A study of assigned tasks: one split for all methods, and the scores of each task."""

from __future__ import annotations

import pytest

from client_agent.transport.admin_client import Operator
from schemas.messages.scores import Scores
from studies.clients import SharedModels
from studies.methods import control_of, merge_tables, methods_of
from studies.report.summary import summarise
from studies.results import CellResult, ClientResult, cells_of
from studies.run_cell import run_cell
from studies.study import Study
from studies.worker_context import WorkerContext
from tests.scene.coordinator import ADMIN_TOKEN, Served
from tests.unit.studies.instruction_rows import KEYWORDS, study

METHODS = ["local_lora", "fedit_local", "fed_vemoe"]
TASKS = ("task3_cargo_query", "task5_crew_answer")


@pytest.fixture(scope="module")
def runs(
    tmp_path_factory: pytest.TempPathFactory, coordinator: Served
) -> tuple[Study, dict[str, CellResult]]:
    folder = tmp_path_factory.mktemp("instructions")
    read = study(
        folder, KEYWORDS.replace('language = ["translat"]\n', "").replace('"answer"', '"crew"'), silos=2
    )
    plan = merge_tables(read.plan, {"rounds.total": 1, "training": {"steps": 1, "batch_size": 2}})
    plan["scores"] = {"examples": 3, "new_tokens": 3}
    read = read.model_copy(update={"plan": plan, "tests": 3})
    cells = list(cells_of(read, methods_of(read, METHODS), [0]))
    assert control_of(read, "fed_vemoe", cells[-1].plan) == "local_lora"
    with Operator(coordinator.url, ADMIN_TOKEN) as operator:
        context = WorkerContext(read, folder / "out", operator, SharedModels())
        return read, {cell.method: run_cell(context, cell, lambda rounds, activity: None) for cell in cells}


def sides(client: ClientResult) -> list[tuple[dict[str, object], dict[str, object]]]:
    """Return the scores of all tasks together, and by task, of every state of a client."""
    states: list[tuple[dict[str, object], dict[str, object]]] = []
    for entry in client.rounds:
        assert isinstance(entry.scores, Scores)
        states += [(dict(entry.scores.served), dict(entry.tasks["served"]))]
        states += [(dict(entry.scores.trained), dict(entry.tasks["trained"]))]
    if client.final is not None:
        states.append((dict(client.final.scores), dict(client.final.tasks)))
    return states


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_states_of_a_run_are_scored_by_task(runs: tuple[Study, dict[str, CellResult]]) -> None:
    _, results = runs
    for method, run in results.items():
        for number, task in enumerate(TASKS):
            for whole, by_task in sides(run.clients[number]):
                assert by_task == {task: whole}  # a silo of one task
                assert {"loss", "perplexity", "rouge_l", "exact_match"} == set(whole)
        assert (run.clients[0].final is None) == (method == "local_lora")


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_methods_begin_with_the_same_scores_by_task(
    runs: tuple[Study, dict[str, CellResult]],
) -> None:
    read, results = runs
    starts = [[client.rounds[0].tasks["served"] for client in run.clients] for run in results.values()]
    assert starts[0] == starts[1] == starts[2]
    report = summarise(read, "instructions", [0], list(results.values()), [])
    local, *federated = report.methods
    for method in federated:
        assert method.main_tasks.keys() == local.main_tasks.keys()
        assert method.main_tasks[TASKS[0]]["perplexity"].against.keys() == {"local_lora"}
        assert (method.rounds, method.steps_per_round, method.batch_size) == (
            local.rounds,
            local.steps_per_round,
            local.batch_size,
        )
