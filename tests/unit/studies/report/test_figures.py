"""Figures against computation by hand, and the tables and pictures that show them."""

from __future__ import annotations

import re
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from studies.report.charts import as_svg, draw
from studies.report.estimates import estimate, pairing
from studies.report.page import write_page
from studies.report.pictures import figures_of
from studies.report.summary import Report, summarise
from studies.report.tables import passing, show
from studies.results import CellResult
from studies.study_partitions import SizePartition
from tests.scene.studies import result, silo_table, study

SILOS = (
    silo_table("aster"),
    silo_table("birch"),
    silo_table("lone", task="flip"),
    silo_table("late", joins_after=1),
)


def report(folder: Path) -> Report:
    late = {"late": 1}
    runs = [
        result(
            "local",
            0,
            {"aster": (1, 0.8, 0.6), "birch": (1, 0.6, 0.4), "lone": (1, 0.6, 0.2), "late": (1, 0.7, 0.5)},
        ),
        result(
            "local",
            1,
            {"aster": (1, 0.8, 0.5), "birch": (1, 0.6, 0.5), "lone": (1, 0.6, 0.5), "late": (1, 0.7, 0.1)},
        ),
        result(
            "fedmosaic",
            0,
            {"aster": (1, 0.7, 0.2), "birch": (1, 0.5, 0.5), "lone": (1, 0.6, 0.2), "late": (0.6, 0.4)},
            joins_after=late,
        ),
        result(
            "fedmosaic",
            1,
            {"aster": (1, 0.7, 0.2), "birch": (1, 0.5, 0.2), "lone": (1, 0.6, 0.6), "late": (0.4, 0.2)},
            joins_after=late,
        ),
    ]
    return summarise(study(folder, *SILOS), "tiny", [0, 1], runs, [])


def test_the_standard_error_is_that_of_the_mean() -> None:
    spread = estimate([0.1, 0.2, 0.6])
    assert spread.mean == pytest.approx(0.3)
    # variance (.04 + .01 + .09) / 2 = .07; error sqrt(.07 / 3)
    assert spread.error == pytest.approx(0.152752523)
    assert estimate([0.5]).error is None
    with pytest.raises(ValueError, match="no values"):
        estimate([])


def test_methods_are_paired_by_seed_and_client() -> None:
    method = {0: {"a": 0.5, "b": 0.7}, 1: {"a": 0.9, "b": 0.7}, 2: {"a": 1.0}}
    baseline = {0: {"a": 0.4, "b": 0.8}, 1: {"a": 0.3, "b": 0.5}}
    paired = pairing(method, baseline, lower_is_better=False)
    assert paired is not None
    assert paired.seeds.values == pytest.approx([0.0, 0.4])
    assert (paired.seeds.mean, paired.seeds.error) == (pytest.approx(0.2), pytest.approx(0.2))
    # pairs .1, -.1, .6, .2: mean .2, variance (.01 + .09 + .16 + 0) / 3, error sqrt(.26 / 3 / 4)
    assert paired.clients.values == pytest.approx([0.1, -0.1, 0.6, 0.2])
    assert paired.clients.error == pytest.approx(0.147196014)
    assert (paired.better, paired.worse) == (3, 1)
    assert pairing(method, {5: {"a": 0.1}}, lower_is_better=False) is None
    lower = pairing(method, baseline, lower_is_better=True)
    assert lower is not None
    assert (lower.better, lower.worse) == (1, 3)


def test_means_and_worst_clients_count_founders_only(tmp_path: Path) -> None:
    local, fedmosaic = report(tmp_path).methods
    assert local.loss.mean.values == pytest.approx([0.4, 0.5])
    assert fedmosaic.loss.mean.values == pytest.approx([0.3, 1 / 3])
    assert fedmosaic.loss.worst.values == pytest.approx([0.5, 0.6])
    assert fedmosaic.loss.against["local"].seeds.values == pytest.approx([-0.1, -1 / 6])
    assert (fedmosaic.loss.against["local"].better, fedmosaic.loss.against["local"].worse) == (3, 2)
    assert "local" not in local.loss.against
    assert fedmosaic.loss.groups["copy"].values == pytest.approx([0.35, 0.2])
    assert fedmosaic.loss.count == 24
    assert fedmosaic.trained.steps == [0, 10, 20]
    assert [value.mean for value in fedmosaic.trained.loss] == pytest.approx([1.0, 0.6, 19 / 60])
    assert [value.mean for value in fedmosaic.served.loss] == pytest.approx([1.0, 0.6])


def test_higher_metrics_are_better(tmp_path: Path) -> None:
    summary = report(tmp_path)
    assert summary.metrics == ["exact_match"]
    matches = summary.methods[1].scores["end"]["exact_match"]
    assert matches.mean.values == pytest.approx([0.97, 1 - 1 / 30])
    assert matches.worst.values == pytest.approx([0.95, 0.94])
    assert (matches.against["local"].better, matches.against["local"].worse) == (3, 2)


def test_a_late_joiner_is_compared_with_training_alone(tmp_path: Path) -> None:
    local, fedmosaic = report(tmp_path).methods
    (late,) = fedmosaic.latecomers
    assert late.curve.steps == [0, 10]
    assert [value.mean for value in late.curve.loss] == pytest.approx([0.5, 0.3])
    assert late.alone["local"].values == [0.5, 0.1]
    assert late.ahead_after["local"] == [10, None]
    # .4 - .5 and .2 - .1: mean 0, error sqrt(.02 / 2)
    assert late.against["local"].seeds.values == pytest.approx([-0.1, 0.1])
    assert late.against["local"].seeds.error == pytest.approx(0.1)
    assert local.latecomers[0].curve.steps == [0, 10, 20]
    assert local.latecomers[0].against == {}


@pytest.mark.parametrize(
    ("curve", "ahead"),
    [((0.4, 0.6, 0.3, 0.2), 20), ((0.4, 0.3, 0.2, 0.5), None), ((0.4, 0.3, 0.2, 0.1), 0)],
)
def test_a_late_joiner_leads_once_it_stays_ahead(
    tmp_path: Path, curve: tuple[float, ...], ahead: int | None
) -> None:
    silos = (silo_table("aster"), silo_table("birch"), silo_table("late"))
    founders = {"aster": (1, 0.8, 0.8, 0.8), "birch": (1, 0.8, 0.8, 0.8)}
    runs = [
        result("local", 0, founders | {"late": (1, 0.9, 0.7, 0.5)}),
        result("fedmosaic", 0, founders | {"late": curve}),
    ]
    read = study(tmp_path, *silos)
    joined = read.silo[2].model_copy(update={"joins_after": 1})
    read = read.model_copy(update={"silo": [*read.silo[:2], joined]})
    summary = summarise(read, "tiny", [0], runs, [])
    (late,) = summary.methods[1].latecomers
    assert late.ahead_after == {"local": [ahead]}
    assert passing(late, "local") == f"{'not within 30 steps' if ahead is None else ahead} (0.500)"


@pytest.mark.slow
def test_methods_are_compared_on_common_seeds(tmp_path: Path) -> None:
    def run(method: str, seed: int, loss: float) -> CellResult:
        return result(method, seed, {"aster": (1, loss), "birch": (1, loss)})

    runs = [
        run("local", 0, 0.1),
        run("local", 1, 0.2),
        run("local", 2, 0.3),
        run("fedavg", 0, 0.2),
        run("fedavg", 1, 0.4),
        run("fedavg", 2, 0.9),
        run("fedmosaic", 0, 0.5),
        run("fedmosaic", 1, 0.5),
    ]
    summary = summarise(study(tmp_path), "tiny", [0, 1, 2], runs, ["fedmosaic, seed 2: see log.txt"])
    assert summary.paired_seeds == [0, 1]
    local, fedavg, fedmosaic = summary.methods
    assert local.loss.mean.values == pytest.approx([0.1, 0.2, 0.3])
    assert fedavg.loss.against["local"].seeds.values == pytest.approx([0.1, 0.2])
    assert fedmosaic.loss.against["local"].seeds.values == pytest.approx([0.4, 0.3])
    printed = StringIO()
    show(summary, Console(file=printed, width=250))
    write_page(summary, tmp_path / "report.html")
    for text in (printed.getvalue(), (tmp_path / "report.html").read_text()):
        assert "ncomplete results, runs missing: 1" in text
        assert "fedmosaic, seed 2: see log.txt" in text
        assert "2 of 3" in text
        assert "against local (n = 2)" in text


def test_the_loss_of_a_lone_client_is_shown(tmp_path: Path) -> None:
    (lone,) = report(tmp_path).methods[1].lone
    assert lone.name == "lone"
    assert lone.against["local"].seeds.values == pytest.approx([0.0, 0.1])


FIGURES = (
    "0.317 ± 0.017",
    "-0.133 ± 0.033",
    "10, not within 10 steps (0.300)",
    "+0.050 ± 0.050 (noise)",
    "+0.250 ± 0.000",
    "0 of 3",
)


@pytest.mark.slow
def test_tables_and_page_carry_the_figures(tmp_path: Path) -> None:
    summary = report(tmp_path)
    printed = StringIO()
    show(summary, Console(file=printed, width=250))
    for text in FIGURES:
        assert text in printed.getvalue()
    write_page(summary, tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text()
    assert page.count("<svg") == 11
    assert "At equal bytes" in page
    for text in FIGURES:
        assert text in page
    for text in (
        "n − 1 degrees of freedom",
        "2 rounds × 10 steps, batches of 8; 4 training examples",
        "4 × tiny",
    ):
        assert text in page


@pytest.mark.slow
def test_curves_differ_by_dashes_and_start_before_training(tmp_path: Path) -> None:
    runs = [
        result(name, 0, {"aster": (0.875, 0.5), "birch": (0.875, 0.5)})
        for name in ("local", "local_lora", "fedavg", "fedmosaic")
    ]
    summary = summarise(study(tmp_path), "tiny", [0], runs, [])
    assert [m.trained.loss[0].mean for m in summary.methods] == [0.875] * 4
    steps = draw(summary)["curves"]
    assert len(set(re.findall(r"stroke-dasharray: [^;\"]+", steps))) >= 3
    differences = as_svg(figures_of(summary))["differences"]
    assert "minus local_lora" in differences
    assert "differences" not in figures_of(summarise(study(tmp_path), "tiny", [0], runs[2:], []))


def test_examples_are_those_of_a_partition_by_size(tmp_path: Path) -> None:
    read = study(tmp_path).model_copy(update={"partition": SizePartition(kind="by_size", sizes=[7, 3])})
    summary = summarise(read, "tiny", [0], [result("local", 0, {"aster": (1, 0.5), "birch": (1, 0.3)})], [])
    assert summary.examples == {"aster": 7, "birch": 3}
