"""Scores after each round and at equal bytes, against one control, and what is noise."""

from __future__ import annotations

from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from rich.console import Console

from studies.fair_search import RateTrial
from studies.report.charts import chart_styles
from studies.report.courses import Compared, Course
from studies.report.courses_charts import differences, over_bytes, over_rounds
from studies.report.estimates import estimate, verdict_of
from studies.report.latex import latex_at_equal_bytes, latex_table
from studies.report.page import write_page
from studies.report.pictures import write_paper, write_pictures
from studies.report.summary import Report, summarise
from studies.report.tables import remarks, show
from studies.results import CellResult, ClientRound
from tests.scene.studies import result, study
from tests.unit.studies.comparisons import finish_searches, planned_fair_comparison, store_finished

ALONE = {1: 0.5, 2: 0.6, 3: 0.5}
CHEAP = {1: 0.4, 2: 0.5, 3: 0.4}
DEAR = {1: 0.55, 2: 0.35, 3: 0.3}


def runs() -> list[CellResult]:
    """Fabricate two rounds of three methods; one sends ten times as much as another, and gains late."""
    results = []
    for seed in ALONE:
        alone = result("local_lora", seed, losses(0.9, ALONE[seed]), validated=True)
        cheap = result(
            "fedit", seed, losses(CHEAP[seed], CHEAP[seed]), final=final_losses(0.8), validated=True
        )
        dear = result("fedex_lora", seed, losses(0.8, 0.8), final=final_losses(DEAR[seed]), validated=True)
        results += [with_bytes_times(alone, 0), cheap, with_bytes_times(dear, 10)]
    return results


def losses(first: float, second: float) -> dict[str, tuple[float, float, float]]:
    return {"aster": (1, first, second), "birch": (1, first, second)}


def final_losses(loss: float) -> dict[str, float]:
    return {"aster": loss, "birch": loss}


def with_bytes_times(done: CellResult, times: int) -> CellResult:
    """Return a result whose clients send and receive so many times the bytes."""

    def multiplied(entry: ClientRound) -> ClientRound:
        return entry.model_copy(
            update={"bytes_up": times * entry.bytes_up, "bytes_down": times * entry.bytes_down}
        )

    clients = [
        c.model_copy(update={"rounds": [multiplied(entry) for entry in c.rounds]}) for c in done.clients
    ]
    return done.model_copy(update={"clients": clients})


@pytest.fixture
def report(tmp_path: Path) -> Report:
    return compared(tmp_path, runs())


def compared(folder: Path, results: list[CellResult], **more: Any) -> Report:
    trials = {"fedit": [RateTrial(rate=0.01, loss=0.5), RateTrial(rate=0.03, loss=None)]}
    return summarise(study(folder), "battery", [1, 2, 3], results, [], **({"trials": trials} | more))


def end(course: Course, score: str = "loss") -> Compared:
    return course.rounds[score][-1]


def test_a_point_is_the_best_state_so_far(report: Report) -> None:
    courses = report.courses
    cheap = [round(c.value.mean, 3) for c in courses["fedit"].rounds["loss"]]
    assert cheap == [1, 0.433, 0.433]  # the final weights are worse, and not taken
    assert [round(c.value.mean, 3) for c in courses["fedex_lora"].rounds["loss"]] == [1, 0.8, 0.4]
    assert [round(c.value.mean, 3) for c in courses["local_lora"].rounds["loss"]] == [1, 0.9, 0.533]
    assert courses["fedit"].bytes == [2000, 5000, 8000]
    assert courses["fedex_lora"].bytes == [20000, 50000, 80000]
    assert courses["local_lora"].bytes == [0, 0, 0]


def test_a_course_ends_with_its_methods_result(report: Report) -> None:
    for method in report.methods:
        for score in report.course_scores:
            figures, last = method.scores["best"][score], end(report.courses[method.method], score)
            assert last.value.values == pytest.approx(figures.mean.values)
            if last.difference is not None:
                paired = figures.against["local_lora"].seeds
                assert last.difference.values == pytest.approx(paired.values)


def test_scores_at_equal_bytes_count_rounds_that_fit(report: Report) -> None:
    courses = report.courses
    assert [round(budget) for budget in report.budgets] == [8000, 17235, 37133, 80000]
    assert [round(c.value.mean, 3) for c in courses["fedex_lora"].budgets["loss"]] == [1, 1, 1, 0.4]
    assert [round(c.value.mean, 3) for c in courses["fedit"].budgets["loss"]] == [0.433] * 4
    assert [round(c.value.mean, 3) for c in courses["local_lora"].budgets["loss"]] == [0.533] * 4


def test_the_largest_budget_pays_for_every_last_round(tmp_path: Path) -> None:
    results = [
        with_bytes_times(done, 11) if (done.method, done.seed) == ("fedex_lora", 2) else done
        for done in runs()
    ]
    unequal = compared(tmp_path, results)
    dear = unequal.courses["fedex_lora"]
    assert unequal.budgets[-1] >= 11 * 80_000
    assert dear.budgets["loss"][-1] == end(dear)


@pytest.mark.parametrize(
    ("values", "verdict"),
    [
        ([-0.1, -0.1, -0.13], "lower"),
        ([0.05, -0.25, -0.2], "noise"),
        ([0.1, 0.11, 0.1], "higher"),
        ([1.0], "one draw"),
    ],
)
def test_a_difference_within_two_standard_errors_is_noise(values: list[float], verdict: str) -> None:
    assert verdict_of(estimate(values)) == verdict


def test_differences_are_paired_by_seed(report: Report) -> None:
    cheap, dear = (end(report.courses[name]).difference for name in ("fedit", "fedex_lora"))
    assert cheap is not None
    assert dear is not None
    assert cheap.values == pytest.approx([-0.1, -0.1, -0.1])
    assert (verdict_of(cheap), verdict_of(dear)) == ("lower", "noise")
    assert end(report.courses["local_lora"]).difference is None


def test_tables_mark_noise(report: Report) -> None:
    printed = StringIO()
    show(report, Console(file=printed, width=200))
    for text in ("-0.133 ± 0.093 (noise)", "-0.100 ± 0.000", "0.01: 0.500, 0.03: diverged", "17 kB"):
        assert text in printed.getvalue()
    assert r"$-0.133 \pm 0.093$ (noise)" in latex_table(report)
    paper = latex_at_equal_bytes(report)
    assert r"$-0.133 \pm 0.093$ (noise)" in paper
    assert paper.count(r"\begin{tabular}") == 2
    assert Report.model_validate_json(report.model_dump_json()) == report


@pytest.mark.parametrize("spread", [1.5, 8, 90, 5000])
def test_axes_have_several_byte_labels_and_whole_rounds(report: Report, spread: float) -> None:
    changed = with_courses(report, bytes=[150e3 * spread ** (i / 2) for i in range(3)])
    for figure in pictures(changed):
        FigureCanvasAgg(figure).draw()
        axes = figure.axes[0]
        low, high = axes.get_xlim()
        shown = [
            text
            for text in axes.get_xticklabels()
            if text.get_text() and low <= text.get_position()[0] <= high
        ]
        assert len(shown) >= 2
    assert all(float(text.get_position()[0]).is_integer() for text in shown)


@pytest.mark.parametrize(("factor", "scale"), [(1.0, "linear"), (0.001, "log")])
def test_a_far_falling_loss_has_a_logarithmic_axis(report: Report, factor: float, scale: str) -> None:
    best = report.courses["fedex_lora"]
    *earlier, last = best.rounds["loss"]
    fallen = last.model_copy(
        update={"value": last.value.model_copy(update={"mean": factor * last.value.mean})}
    )
    changed = with_courses(report, only="fedex_lora", rounds={**best.rounds, "loss": [*earlier, fallen]})
    for figure in pictures(changed):
        assert figure.axes[0].get_yscale() == scale


def with_courses(report: Report, only: str | None = None, **changes: Any) -> Report:
    """Return a report with changed courses of all methods, or of one."""
    methods = [
        m.model_copy(update={"course": m.course.model_copy(update=changes)})
        if m.course is not None and only in (None, m.method)
        else m
        for m in report.methods
    ]
    return report.model_copy(update={"methods": methods})


def pictures(report: Report) -> list[Figure]:
    drawn = [draw(report, chart_styles(report)) for draw in (over_bytes, over_rounds)]
    return [figure for figure in drawn if figure is not None]


def test_differences_have_a_panel_per_baseline_and_metric(report: Report) -> None:
    figure = differences(report, chart_styles(report))
    assert figure is not None
    labels = ["test loss minus local_lora", "test exact_match minus local_lora"]
    assert [axes.get_xlabel() for axes in figure.axes] == labels
    assert [label.get_text() for label in figure.axes[0].get_yticklabels()] == ["fedit", "fedex_lora"]


@pytest.mark.slow
def test_page_and_pictures_have_courses_and_searches(report: Report, tmp_path: Path) -> None:
    write_page(report, tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text()
    assert "-0.133 ± 0.093 (noise)" in page
    assert "0.01: 0.500, 0.03: diverged" in page
    files = {file.name for file in [*write_paper(report, tmp_path), *write_pictures(report, tmp_path)]}
    names = [
        f"{name}.{kind}" for name in ("over_rounds", "over_bytes", "differences") for kind in ("pdf", "png")
    ]
    assert {*names, "bytes.tex"} <= files


def test_differences_need_a_control(tmp_path: Path) -> None:
    uncontrolled = compared(tmp_path, [done for done in runs() if done.method != "local_lora"])
    assert uncontrolled.control is None
    assert all(end(course).difference is None for course in uncontrolled.courses.values())
    assert differences(uncontrolled, chart_styles(uncontrolled)) is None
    assert "minus" not in latex_at_equal_bytes(uncontrolled)


def test_the_study_names_its_control(tmp_path: Path) -> None:
    read = study(tmp_path, more='fair.control = "fedit"\n')
    summary = summarise(read, "battery", [1, 2, 3], runs(), [])
    assert (summary.control, summary.baselines) == ("fedit", ["local_lora", "fedit"])
    assert end(summary.courses["fedit"]).difference is None
    difference = end(summary.courses["local_lora"]).difference
    assert difference is not None
    assert difference.values == pytest.approx([0.1, 0.1, 0.1])


def test_a_method_with_sampled_clients_has_no_course(tmp_path: Path) -> None:
    results = [with_an_undrawn_client(done) if done.method == "fedex_lora" else done for done in runs()]
    summary = compared(tmp_path, results)
    assert list(summary.courses) == ["local_lora", "fedit"]
    assert remarks(summary)[-1].startswith("fedex_lora: clients take part in different rounds")


def with_an_undrawn_client(done: CellResult) -> CellResult:
    """Return a result of whose clients one was not drawn for the last round."""
    first, *others = done.clients
    return done.model_copy(
        update={"clients": [first.model_copy(update={"rounds": first.rounds[:1]}), *others]}
    )


def test_the_report_has_searches_and_their_cost(tmp_path: Path) -> None:
    comparison = planned_fair_comparison(tmp_path, "fair.rates = [0.1, 0.2]\n")
    finish_searches(comparison, {0.1: 1, 0.2: 2})
    for cell in comparison.cells:
        store_finished(comparison, cell, 0.5)
    summary = comparison.reported()
    assert [(cost.method, cost.seed, cost.rate) for cost in summary.costs if cost.search] == [
        ("local_lora", 0, 0.1),
        ("local_lora", 0, 0.2),
        ("fedit", 0, 0.1),
        ("fedit", 0, 0.2),
    ]
    assert len(summary.costs) == 8
    assert summary.paired_seeds == [1, 2]
    assert summary.search_seed == 0
    assert summary.methods[0].trials == [RateTrial(rate=0.1, loss=1), RateTrial(rate=0.2, loss=2)]
    assert summary.search_cpu_seconds == 4 + 4 * 0.5  # whole runs, and what agents searched in the others
