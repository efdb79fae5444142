"""Figures against computation by hand, and the tables and pictures that show them."""

from __future__ import annotations

from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from client_agent.simulation.estimates import estimate, pairing
from client_agent.simulation.page import write_page
from client_agent.simulation.summary import Report, summarised
from client_agent.simulation.table import show
from tests.client_agent.simulation.studies import result, silo_table, study

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
            {"aster": (0, 0.2, 0.4), "birch": (0, 0.4, 0.6), "lone": (0, 0.4, 0.8), "late": (0, 0.3, 0.5)},
        ),
        result(
            "local",
            1,
            {"aster": (0, 0.2, 0.5), "birch": (0, 0.4, 0.5), "lone": (0, 0.4, 0.5), "late": (0, 0.3, 0.9)},
        ),
        result(
            "fedmosaic",
            0,
            {"aster": (0, 0.3, 0.8), "birch": (0, 0.5, 0.5), "lone": (0, 0.4, 0.8), "late": (0.4, 0.6)},
            joins_after=late,
        ),
        result(
            "fedmosaic",
            1,
            {"aster": (0, 0.3, 0.8), "birch": (0, 0.5, 0.8), "lone": (0, 0.4, 0.4), "late": (0.6, 0.8)},
            joins_after=late,
        ),
    ]
    return summarised(study(folder, *SILOS), "tiny", runs, [])


def test_the_standard_error_is_that_of_the_mean() -> None:
    found = estimate([0.1, 0.2, 0.6])
    assert found.mean == pytest.approx(0.3)
    # variance (.04 + .01 + .09) / 2 = .07; error sqrt(.07 / 3)
    assert found.error == pytest.approx(0.152752523)
    assert estimate([0.5]).error is None
    with pytest.raises(ValueError, match="no values"):
        estimate([])


def test_methods_are_paired_by_seed_and_client() -> None:
    ours = {0: {"a": 0.5, "b": 0.7}, 1: {"a": 0.9, "b": 0.7}, 2: {"a": 1.0}}
    theirs = {0: {"a": 0.4, "b": 0.8}, 1: {"a": 0.3, "b": 0.5}}
    paired = pairing(ours, theirs)
    assert paired is not None
    assert paired.seeds.values == pytest.approx([0.0, 0.4])
    assert (paired.seeds.mean, paired.seeds.error) == (pytest.approx(0.2), pytest.approx(0.2))
    # pairs .1, -.1, .6, .2: mean .2, variance (.01 + .09 + .16 + 0) / 3, error sqrt(.26 / 3 / 4)
    assert paired.clients.values == pytest.approx([0.1, -0.1, 0.6, 0.2])
    assert paired.clients.error == pytest.approx(0.147196014)
    assert (paired.better, paired.worse) == (3, 1)
    assert pairing(ours, {5: {"a": 0.1}}) is None


def test_only_founders_count_in_means_and_the_worst_client(tmp_path: Path) -> None:
    local, fedmosaic = report(tmp_path).methods
    assert local.accuracy.values == pytest.approx([0.6, 0.5])
    assert fedmosaic.accuracy.values == pytest.approx([0.7, 2 / 3])
    assert fedmosaic.worst.values == pytest.approx([0.5, 0.4])
    assert fedmosaic.against["local"].seeds.values == pytest.approx([0.1, 1 / 6])
    assert (fedmosaic.against["local"].better, fedmosaic.against["local"].worse) == (3, 2)
    assert "local" not in local.against
    assert fedmosaic.groups["copy"].values == pytest.approx([0.65, 0.8])
    assert fedmosaic.steps == [10, 20]
    assert [value.mean for value in fedmosaic.accuracy_by_step] == pytest.approx([0.4, 41 / 60])


def test_a_late_joiner_is_measured_against_the_end_of_training_alone(tmp_path: Path) -> None:
    local, fedmosaic = report(tmp_path).methods
    (late,) = fedmosaic.latecomers
    assert late.steps == [0, 10]
    assert [value.mean for value in late.accuracy] == pytest.approx([0.5, 0.7])
    assert late.alone["local"].values == [0.5, 0.9]
    assert late.ahead_after["local"] == [10, None]
    assert local.latecomers[0].steps == [0, 10, 20]


def test_a_lone_client_s_loss_is_shown(tmp_path: Path) -> None:
    (lone,) = report(tmp_path).methods[1].lone
    assert lone.name == "lone"
    assert lone.against["local"].seeds.values == pytest.approx([0.0, -0.1])


def test_tables_and_page_carry_the_figures(tmp_path: Path) -> None:
    made = report(tmp_path)
    printed = StringIO()
    show(made, Console(file=printed, width=250))
    for text in ("0.683 ± 0.017", "+0.133 ± 0.033", "10, never (0.70)", "-0.050 ± 0.050"):
        assert text in printed.getvalue()
    write_page(made, tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text()
    assert page.count("<svg") == 4
    for text in ("0.683 ± 0.017", "+0.133 ± 0.033", "10, never (0.70)"):
        assert text in page
