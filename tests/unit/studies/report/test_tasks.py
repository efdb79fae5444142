"""Scores of each task, over the clients that have it and client by client, in every form of the report."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from client_agent.storage.final_scores import TaskScores
from schemas.messages.scores import Score
from studies.report.page import write_page
from studies.report.pictures import write_paper
from studies.report.summary import Report, summarise
from studies.report.tables import show
from studies.results import CellResult
from tests.scene.studies import result, study


def scores(task: str, loss: float, rouge: float, count: int = 3) -> TaskScores:
    values = {"loss": loss, "perplexity": 2 * loss, "rouge_l": rouge}
    return {task: {name: Score(value=value, count=count) for name, value in values.items()}}


def with_tasks(run: CellResult, tasks: dict[str, TaskScores]) -> CellResult:
    """Return a run whose clients have these scores after their last round, and none before."""
    clients = []
    for client in run.clients:
        last = client.rounds[-1].model_copy(update={"tasks": {"trained": tasks[client.name]}})
        clients.append(client.model_copy(update={"rounds": [*client.rounds[:-1], last]}))
    return run.model_copy(update={"clients": clients})


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Report:
    losses = {"aster": (1, 0.5), "birch": (1, 0.3)}
    runs = []
    for seed in (0, 1):
        alone = {
            "aster": scores("task1_a", 2, 0.2) | scores("task2_b", 4, 0.5),
            "birch": scores("task1_a", 3, 0.4),
        }
        better = {"aster": scores("task1_a", 1, 0.6), "birch": scores("task1_a", 2 + seed, 0.8, count=5)}
        runs.append(with_tasks(result("local", seed, losses), alone))
        runs.append(with_tasks(result("fedavg", seed, losses), better))
    return summarise(study(tmp_path_factory.mktemp("tasks")), "tiny", [0, 1], runs, [])


def test_means_cover_clients_that_have_a_task(report: Report) -> None:
    local, fedavg = (method.main_tasks for method in report.methods)
    assert {task: list(by_score) for task, by_score in local.items()} == {
        "task1_a": ["loss", "perplexity", "rouge_l"],
        "task2_b": ["loss", "perplexity", "rouge_l"],
    }
    assert local["task1_a"]["loss"].mean.mean == 2.5
    assert list(local["task2_b"]["rouge_l"].clients) == ["aster"]
    figures = fedavg["task1_a"]["rouge_l"]
    assert (figures.mean.values, figures.count) == ([0.7, 0.7], 8)
    assert figures.clients["birch"].values == [0.8, 0.8]


def test_a_task_is_compared_with_training_alone(report: Report) -> None:
    _, fedavg = (method.main_tasks["task1_a"] for method in report.methods)
    assert fedavg["perplexity"].against["local"].seeds.values == [-2, -1]
    assert (fedavg["rouge_l"].against["local"].better, fedavg["rouge_l"].against["local"].worse) == (4, 0)


@pytest.mark.slow
def test_all_forms_of_the_report_have_tasks(report: Report, tmp_path: Path) -> None:
    console = Console(file=io.StringIO(), width=200)
    show(report, console)
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert "task2_b" in text
    assert "loss" not in [line.split("│")[2].strip() for line in text.splitlines() if "task1_a" in line]
    write_page(report, tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text()
    assert "<td>task2_b</td><td>rouge_l</td><td>0.500 ± 0.000</td><td>-</td>" in page
    assert "<td>birch</td><td>perplexity</td><td>6.000 ± 0.000</td><td>5.000 ± 1.000</td>" in page
    assert "tasks.tex" in {file.name for file in write_paper(report, tmp_path)}
    lines = (tmp_path / "tasks.tex").read_text().splitlines()
    assert r"task1\_a & rouge\_l & $0.300 \pm 0.000$ & $0.700 \pm 0.000$ \\" in lines
    assert Report.model_validate_json(report.model_dump_json()) == report
