"""What a fair comparison reports: scores after each round, at equal bytes, and what is noise."""

from __future__ import annotations

from io import StringIO
from pathlib import Path

import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from rich.console import Console

from studies.fair_search import RateTrial
from studies.report.charts import ChartStyle
from studies.report.estimates import estimate
from studies.report.fair import Compared, FairReport, cost_of, fair_report
from studies.report.fair_charts import over_bytes, over_rounds
from studies.report.fair_tables import latex_fair
from studies.report.page import write_page
from studies.report.pictures import write_paper, write_pictures
from studies.report.summary import Report, summarise
from studies.report.tables import show
from studies.results import CellResult, ClientRound
from tests.studies.studies import result, study
from tests.studies.test_fair import finish, planned, search

ALONE = {1: 0.5, 2: 0.6, 3: 0.5}
CHEAP = {1: 0.4, 2: 0.5, 3: 0.4}
DEAR = {1: 0.55, 2: 0.35, 3: 0.3}


def runs() -> list[CellResult]:
    """Fabricate two rounds of three methods; one sends ten times as much as another, and gains late."""
    made = []
    for seed in ALONE:
        alone = result("local_lora", seed, losses(0.9, ALONE[seed]), validated=True)
        cheap = result("fedit", seed, losses(CHEAP[seed], CHEAP[seed]), final=ends(0.8), validated=True)
        dear = result("fedex_lora", seed, losses(0.8, 0.8), final=ends(DEAR[seed]), validated=True)
        made += [sending(alone, 0), cheap, sending(dear, 10)]
    return made


def losses(first: float, second: float) -> dict[str, tuple[float, float, float]]:
    return {"aster": (1, first, second), "birch": (1, first, second)}


def ends(loss: float) -> dict[str, float]:
    return {"aster": loss, "birch": loss}


def sending(done: CellResult, times: int) -> CellResult:
    """Return a result whose clients send and receive so many times the bytes."""

    def of(entry: ClientRound) -> ClientRound:
        return entry.model_copy(
            update={"bytes_up": times * entry.bytes_up, "bytes_down": times * entry.bytes_down}
        )

    clients = [c.model_copy(update={"rounds": [of(entry) for entry in c.rounds]}) for c in done.clients]
    return done.model_copy(update={"clients": clients})


def fair() -> FairReport:
    return compared_fairly(runs())


def compared_fairly(results: list[CellResult]) -> FairReport:
    made = fair_report(
        "best",
        control="local_lora",
        search_seed=0,
        seeds=[1, 2, 3],
        results=results,
        trials={"fedit": [RateTrial(rate=0.01, loss=0.5), RateTrial(rate=0.03, loss=None)]},
        costs=[cost_of(r, 0.01, search=False) for r in results],
    )
    assert made is not None
    return made


def report(folder: Path) -> Report:
    made = summarise(study(folder), "battery", [1, 2, 3], runs(), [])
    return made.model_copy(update={"fair": fair()})


def test_a_point_is_the_best_state_until_the_weights_after_a_round() -> None:
    by_name = {method.method: method for method in fair().methods}
    cheap = [round(c.value.mean, 3) for c in by_name["fedit"].rounds["loss"]]
    assert cheap == [1, 0.433, 0.433]  # the final weights are worse, and not taken
    assert [round(c.value.mean, 3) for c in by_name["fedex_lora"].rounds["loss"]] == [1, 0.8, 0.4]
    assert [round(c.value.mean, 3) for c in by_name["local_lora"].rounds["loss"]] == [1, 0.9, 0.533]
    assert by_name["fedit"].bytes == [2000, 5000, 8000]
    assert by_name["fedex_lora"].bytes == [20000, 50000, 80000]
    assert by_name["local_lora"].bytes == [0, 0, 0]


def test_scores_at_equal_bytes_are_those_of_the_rounds_that_fit() -> None:
    made = fair()
    by_name = {method.method: method for method in made.methods}
    assert [round(budget) for budget in made.budgets] == [8000, 17235, 37133, 80000]
    assert [round(c.value.mean, 3) for c in by_name["fedex_lora"].budgets["loss"]] == [1, 1, 1, 0.4]
    assert [round(c.value.mean, 3) for c in by_name["fedit"].budgets["loss"]] == [0.433] * 4
    assert [round(c.value.mean, 3) for c in by_name["local_lora"].budgets["loss"]] == [0.533] * 4


def test_a_method_can_pay_for_its_own_last_round_on_every_seed() -> None:
    results = [
        sending(done, 11) if (done.method, done.seed) == ("fedex_lora", 2) else done for done in runs()
    ]
    made = compared_fairly(results)
    dear = next(method for method in made.methods if method.method == "fedex_lora")
    assert made.budgets[-1] >= 11 * 80_000
    assert dear.budgets["loss"][-1] == dear.end("loss")


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
    assert Compared(value=estimate(values), difference=estimate(values)).verdict == verdict


def test_differences_are_paired_by_seed() -> None:
    by_name = {method.method: method for method in fair().methods}
    cheap, dear = (by_name[name].end("loss") for name in ("fedit", "fedex_lora"))
    assert cheap.difference is not None
    assert cheap.difference.values == pytest.approx([-0.1, -0.1, -0.1])
    assert (cheap.verdict, dear.verdict) == ("lower", "noise")
    assert by_name["local_lora"].end("loss").verdict is None


def test_tables_say_what_is_noise(tmp_path: Path) -> None:
    made, printed = report(tmp_path), StringIO()
    show(made, Console(file=printed, width=200))
    for text in ("-0.133 ± 0.093 (noise)", "-0.100 ± 0.000", "0.01: 0.500, 0.03: diverged", "17 kB"):
        assert text in printed.getvalue()
    paper = latex_fair(fair())
    assert r"$-$0.133 $\pm$ 0.093 (noise)" in paper
    assert paper.count(r"\begin{tabular}") == paper.count(r"\caption{") == 3
    assert r"\begin{table}" in paper
    assert Report.model_validate_json(made.model_dump_json()).fair == made.fair


def test_a_small_rate_in_latex_has_no_minus_within() -> None:
    made = fair()
    small = [method.model_copy(update={"rate": 1e-5}) for method in made.methods]
    assert " & 1e-05 & " in latex_fair(made.model_copy(update={"methods": small}))


@pytest.mark.parametrize("spread", [1.5, 8, 90, 5000])
def test_an_axis_of_bytes_has_several_labels_and_one_of_rounds_whole_numbers(spread: float) -> None:
    made = fair()
    methods = [
        m.model_copy(update={"bytes": [150e3 * spread ** (i / 2) for i in range(len(m.bytes))]})
        for m in made.methods
    ]
    made = made.model_copy(update={"methods": methods})
    styles = {method.method: ChartStyle.nth(i) for i, method in enumerate(methods)}
    for figure, least in ((over_bytes(made, styles), 2), (over_rounds(made, styles), 2)):
        FigureCanvasAgg(figure).draw()
        axes = figure.axes[0]
        low, high = axes.get_xlim()
        shown = [
            text
            for text in axes.get_xticklabels()
            if text.get_text() and low <= text.get_position()[0] <= high
        ]
        assert len(shown) >= least
    assert all(float(text.get_position()[0]).is_integer() for text in shown)


@pytest.mark.parametrize(("factor", "scale"), [(1.0, "linear"), (0.001, "log")])
def test_a_loss_that_falls_far_has_a_logarithmic_axis(factor: float, scale: str) -> None:
    made = fair()
    styles = {method.method: ChartStyle.nth(i) for i, method in enumerate(made.methods)}
    best = made.methods[-1]
    *earlier, last = best.rounds["loss"]
    fallen = last.model_copy(
        update={"value": last.value.model_copy(update={"mean": factor * last.value.mean})}
    )
    changed = best.model_copy(update={"rounds": {**best.rounds, "loss": [*earlier, fallen]}})
    made = made.model_copy(update={"methods": [*made.methods[:-1], changed]})
    for figure in (over_bytes(made, styles), over_rounds(made, styles)):
        assert figure.axes[0].get_yscale() == scale


@pytest.mark.slow
def test_page_and_pictures_have_the_fair_comparison(tmp_path: Path) -> None:
    made = report(tmp_path)
    write_page(made, tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text()
    assert "-0.133 ± 0.093 (noise)" in page
    assert "0.01: 0.500, 0.03: diverged" in page
    files = {file.name for file in [*write_paper(made, tmp_path), *write_pictures(made, tmp_path)]}
    names = [f"fair_{name}.{kind}" for name in ("rounds", "bytes", "differences") for kind in ("pdf", "png")]
    assert {*names, "fair.tex"} <= files


def test_a_report_without_the_control_on_a_seed_is_not_fair_yet() -> None:
    assert (
        fair_report("best", control="other", search_seed=0, seeds=[1], results=runs(), trials={}, costs=[])
        is None
    )


def test_searches_and_what_they_cost_are_in_the_report(tmp_path: Path) -> None:
    comparison = planned(tmp_path, "fair.rates = [0.1, 0.2]\n")
    search(comparison, {0.1: 1, 0.2: 2})
    for cell in comparison.cells:
        finish(comparison, cell, 0.5)
    made = comparison.reported().fair
    assert made is not None
    assert [(cell.method, cell.seed, cell.rate) for cell in made.cells if cell.search] == [
        ("local_lora", 0, 0.1),
        ("local_lora", 0, 0.2),
        ("fedit", 0, 0.1),
        ("fedit", 0, 0.2),
    ]
    assert len(made.cells) == 8
    assert made.seeds == [1, 2]
    assert made.methods[0].trials == [RateTrial(rate=0.1, loss=1), RateTrial(rate=0.2, loss=2)]
    assert made.search_cpu_seconds == 4
