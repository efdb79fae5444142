"""Pictures of single clients, relevance, bytes and alignment errors show what the runs recorded."""

from __future__ import annotations

from pathlib import Path

import pytest

from schemas.messages.alignment import PackErrors
from schemas.messages.federations import AlignmentPlan
from studies.report.charts import chart_styles
from studies.report.rounds_charts import (
    alignment_errors,
    client_losses,
    relevance_over_rounds,
    round_bytes,
)
from studies.report.summary import Report, summarise
from studies.report.tables import remarks
from studies.run_records import AlignmentRecord, RelevanceRecord, TextCount
from tests.scene.studies import result, study

NAMES = ["aster", "birch"]
PACKS = [
    AlignmentRecord(
        base_model="small",
        selected=["b0.q"],
        errors={"b0.q": PackErrors(a=0, b_token=0, b_task=0)},
    ),
    AlignmentRecord(
        base_model="large",
        selected=["b0.v"],
        errors={
            "b0.q": PackErrors(a=0.3, b_token=1.0, b_task=0.9),
            "b0.v": PackErrors(a=0.2, b_token=0.8, b_task=0.4),
        },
    ),
]


def relevance(number: int) -> RelevanceRecord:
    weight = number / 10
    return RelevanceRecord(
        round=number, clients=NAMES, rows=NAMES, weights=[[weight, 1 - weight], [0.5, 0.5]]
    )


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Report:
    alone = result("local", 0, {"aster": (1, 0.5, 0.4), "birch": (1, 0.3, 0.2)})
    aster = alone.clients[0].model_copy(update={"texts": TextCount(examples=8, cut=3)})
    alone = alone.model_copy(update={"clients": [aster, alone.clients[1]]})
    together = result("fedavg", 0, {"aster": (1, 0.3, 0.1), "birch": (1, 0.4, 0.3)})
    plan = AlignmentPlan(pivot="small-000000000000", max_error=0.7)
    together = together.model_copy(
        update={
            "plan": together.plan.model_copy(update={"alignment": plan}),
            "relevance": [relevance(number) for number in range(1, 11)],
            "alignment": PACKS,
        }
    )
    return summarise(study(tmp_path_factory.mktemp("rounds")), "tiny_s", [0], [alone, together], [])


def test_each_client_has_a_panel_of_all_methods(report: Report) -> None:
    panels = client_losses(report, chart_styles(report)).axes
    assert [axes.get_title() for axes in panels] == NAMES
    heights = {line.get_label(): list(line.get_ydata()) for line in panels[1].lines}  # type: ignore[arg-type]
    assert heights == {"local": [1, 0.3, 0.2], "fedavg": [1, 0.4, 0.3]}


def test_relevance_is_drawn_from_first_to_last_round(report: Report) -> None:
    figure = relevance_over_rounds(report)
    assert figure is not None
    panels = [axes for axes in figure.axes if axes.get_title()]
    assert [axes.get_title() for axes in panels] == [f"round {n}" for n in (1, 3, 5, 6, 8, 10)]
    assert panels[-1].images[0].get_array().tolist() == [[1, 0], [0.5, 0.5]]  # type: ignore[union-attr]


def test_a_base_model_shows_errors_and_shared_modules(report: Report) -> None:
    figure = alignment_errors(report)
    assert figure is not None
    (axes,) = figure.axes  # the pivot has no errors
    assert axes.get_title() == "large (fedavg)"
    assert [label.get_text() for label in axes.get_xticklabels()] == ["b0.q", "b0.v"]
    heights = {line.get_label(): list(line.get_ydata()) for line in axes.lines}  # type: ignore[arg-type]
    assert heights["gradients, by task"] == [0.9, 0.4]
    assert heights["largest shared"] == [0.7, 0.7]
    assert len(axes.patches) == 1


def test_bytes_are_those_of_each_round(report: Report) -> None:
    figure = round_bytes(report, chart_styles(report))
    assert figure is not None
    assert [list(axes.lines[0].get_ydata()) for axes in figure.axes] == [[1, 1], [2, 2]]  # type: ignore[arg-type]


def test_texts_that_are_cut_are_counted(report: Report) -> None:
    assert remarks(report) == ["texts longer than training.max_length, which are cut: aster 3 of 8"]


def test_runs_without_records_have_no_pictures(tmp_path: Path) -> None:
    alone = result("local", 0, {"aster": (1, 0.5), "birch": (1, 0.3)})
    silent = alone.model_copy(
        update={
            "clients": [
                client.model_copy(
                    update={
                        "rounds": [
                            e.model_copy(update={"bytes_up": 0, "bytes_down": 0}) for e in client.rounds
                        ]
                    }
                )
                for client in alone.clients
            ]
        }
    )
    summary = summarise(study(tmp_path), "tiny_s", [0], [silent], [])
    assert relevance_over_rounds(summary) is None
    assert alignment_errors(summary) is None
    assert round_bytes(summary, chart_styles(summary)) is None
