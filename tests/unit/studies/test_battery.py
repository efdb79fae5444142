"""Runs of all methods of the battery, and a search during the runs of a pool."""

from __future__ import annotations

from pathlib import Path

import pytest

from studies import simulate
from studies.study import read_study
from tests.scene.agent_processes import EXAMPLES
from tests.unit.studies.comparisons import fair_study

STUDIES = EXAMPLES / "studies"


def test_the_quick_battery_has_the_methods_of_battery() -> None:
    quick, whole = (read_study(STUDIES / f"{name}.toml") for name in ("battery_quick", "battery"))
    assert quick.methods == whole.methods
    assert quick.method == whole.method
    assert quick.fair is not None
    assert quick.fair.model_copy(update={"rates": None}) == whole.fair


@pytest.mark.long
@pytest.mark.timeout(900)
def test_the_quick_battery_runs_without_missing_results(tmp_path: Path) -> None:
    report = simulate(read_study(STUDIES / "battery_quick.toml"), out=tmp_path, workers=2)
    assert not report.missing
    assert list(report.courses) == read_study(STUDIES / "battery.toml").methods
    assert report.paired_seeds == [1]
    assert report.course_scores == ["loss", "exact_match"]
    courses = report.courses
    assert {name for name, course in courses.items() if not course.bytes[-1]} == {"local_lora", "local"}
    assert len({course.rounds["loss"][0].value.mean for course in courses.values()}) == 1  # the bare model
    assert all(cost.wall_seconds > 0 for cost in report.costs)


@pytest.mark.long
@pytest.mark.timeout(900)
def test_the_pool_runs_searches_of_rates(tmp_path: Path) -> None:
    read = fair_study(tmp_path, "fair.rates = [0.003, 0.01]\n")
    report = simulate(read, methods=["local_lora", "fedit"], out=tmp_path / "out", workers=2)
    assert not report.missing
    for method in report.methods:
        best = min(method.trials, key=lambda trial: trial.loss or 0.0)
        assert {rate for rates in method.rates.values() for rate in rates} == {best.rate}
        assert len(method.trials) == 2
    assert [cost.search for cost in report.costs].count(True) == 4
