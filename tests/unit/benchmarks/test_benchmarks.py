"""The benchmarks at small sizes: complete runs and reports."""

from __future__ import annotations

from pathlib import Path

import pytest
from rich.console import Console

from benchmarks import aggregation, aggregation_report, figures, round_report
from benchmarks import round as rounds

COST = {"seconds", "cpu_seconds", "idle_rss_mib", "peak_rss_mib"}


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["fedavg", pytest.param("fedmosaic", marks=pytest.mark.long)])
def test_a_round_is_measured_through_a_running_coordinator(strategy: str, tmp_path: Path) -> None:
    size = rounds.measure(2, 1, strategy=strategy, rounds=2, folder=tmp_path)
    assert (size["clients"], size["mib"], len(size["seconds_each"])) == (2, 1, 2)
    assert 0 < size["seconds"] <= max(size["seconds_each"])
    assert size["cpu_seconds_first_to_last"] > 0
    assert size["copy_and_hash_seconds"] > 0
    assert size["peak_rss_mib"] >= size["idle_rss_mib"] > 20
    assert set(size["phases"]) == {"open", "collecting", "closing", "aggregating"}
    # everything goes up once and down once, and little else does
    assert 1 < size["wire_ratio"] < 1.5
    report = {"machine": figures.machine(), "sizes": [size]}
    round_report.draw(tmp_path / "round.svg", report)
    assert (tmp_path / "round.svg").read_text("utf-8").count("<svg") == 1
    console = Console(record=True, width=200)
    round_report.show(console, report)
    printed = console.export_text()
    assert f"2 x 1 MiB, {strategy}" in printed
    assert "bytes / 2NB" in printed
    assert sum(line.lstrip().startswith(("met: ", "missed: ")) for line in printed.splitlines()) == 2


def test_goals_are_judged_by_measurements() -> None:
    size = {"clients": 4, "mib": 1, "strategy": "fedavg", "seconds": 0.2, "cpu_seconds": 0.06}
    size |= {"peak_rss_mib": 100.0, "copy_and_hash_seconds": 0.1, "wire_ratio": 1.01}
    console = Console(record=True, width=200)
    figures.judge(console, round_report.goals([size, size | {"clients": 8, "peak_rss_mib": 120.0}]))
    lines = [line.strip() for line in console.export_text().splitlines()]
    assert "met: 4 x 1 MiB, fedavg: s per round 0.2, goal 0.3" in lines
    assert "missed: 4 x 1 MiB, fedavg: server's CPU s per round 0.06, goal 0.05" in lines
    assert "missed: peak RSS, 8 x 1 MiB, fedavg / 4 x 1 MiB, fedavg 1.2, goal 1.1" in lines


@pytest.mark.long
def test_aggregation_is_measured_beside_the_bare_product(tmp_path: Path) -> None:
    size = aggregation.measure(3, 4096, block_mib=1, repeats=1, folder=tmp_path, database_url=None)
    assert (size["clients"], size["values"]) == (3, 4096)
    for program in ("tessera", "tessera_unwritten", "product", "files"):
        assert set(size[program]) == COST
        assert size[program]["seconds"] > 0
    assert size["ratio"] == size["tessera"]["seconds"] / size["product"]["seconds"]
    report = {"machine": figures.machine(), "block_mib": 1, "sizes": [size]}
    aggregation_report.draw(tmp_path / "aggregation.svg", report)
    figures.write(tmp_path / "aggregation.json", report)
    assert (tmp_path / "aggregation.json").stat().st_size > 500
    console = Console(record=True, width=200)
    aggregation_report.show(console, report)
    assert "3 x 4096" in console.export_text()
