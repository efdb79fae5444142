"""Negative transfer against a control, by both rules, and what is noise."""

from __future__ import annotations

from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from studies.report.estimates import estimate, verdict_of
from studies.report.summary import Report, summarise
from studies.report.tables import show
from tests.scene.studies import MIXING, result, study


@pytest.mark.parametrize(
    ("values", "verdict"),
    [
        ([0.1], "one draw"),
        ([0.0, 0.0], "noise"),
        ([0.1, 0.1, 0.1], "higher"),
        ([-0.10, -0.11, -0.12], "lower"),
        ([0.0, 0.1, 0.2], "noise"),  # mean .1, error .0577: 1.73 of them
        ([0.0, 0.2, 0.2], "noise"),  # mean .1333, error .0667: two, and not beyond
        ([0.1, 0.2, 0.25], "higher"),  # mean .1833, error .0441: 4.16
    ],
)
def test_a_difference_counts_beyond_the_noise_only(values: list[float], verdict: str) -> None:
    assert verdict_of(estimate(values)) == verdict


def report(folder: Path, seeds: int = 3) -> Report:
    """Aster gains .2 and birch loses .1 in the best state; at the end both lose."""
    runs = [
        run
        for seed in range(seeds)
        for run in (
            result("local", seed, {"aster": (1, 0.5, 0.5), "birch": (1, 0.3, 0.3)}, validated=True),
            result(
                "fedavg",
                seed,
                {"aster": (1, 0.3, 0.7), "birch": (1, 0.4 + seed / 500, 0.7)},
                final={"aster": 0.6, "birch": 0.6},
                validated=True,
                rate=0.001 * 3**seed,
            ),
        )
    ]
    return summarise(study(folder), "tiny", list(range(seeds)), runs, [])


def test_losing_clients_and_the_worst_are_named(tmp_path: Path) -> None:
    summary = report(tmp_path)
    local, fedavg = summary.methods
    assert summary.rules == ["best", "end"]
    assert local.transfer == {}
    best, end = fedavg.transfer["best"], fedavg.transfer["end"]
    assert best.control == "local"
    assert best.loss.seeds.mean == pytest.approx(-0.049)
    assert (best.verdict, best.losers, best.worst_client) == ("lower", ["birch"], "birch")
    assert best.worst.mean == pytest.approx(0.102)
    assert (end.verdict, end.losers) == ("higher", ["aster", "birch"])
    assert end.loss.seeds.values == pytest.approx([0.2] * 3)
    assert fedavg.forgetting == estimate([0.25] * 3)
    assert (local.mixing, fedavg.mixing) == (None, estimate([MIXING.value] * 3))
    assert fedavg.served.steps == [0, 10, 20]
    assert fedavg.served.loss[-1].mean == pytest.approx(0.6)
    printed = StringIO()
    show(summary, Console(file=printed, width=200))
    for text in (
        "-0.049 ± 0.001",
        "1 of 2",
        "birch +0.102 ± 0.001",
        "-0.125 ± 0.000 ",
        "+0.200 ± 0.000",
        "0.001 to 0.009",
    ):
        assert text in printed.getvalue()


def test_a_control_with_other_settings_is_marked(tmp_path: Path) -> None:
    local, fedavg = (result(name, 0, {"aster": (1, 0.5), "birch": (1, 0.3)}) for name in ("local", "fedavg"))
    for update, differs, shown in (
        ({}, [], "local "),
        (
            {"adapter": fedavg.plan.adapter.model_copy(update={"rank": 2})},
            ["adapter"],
            "local (other adapter)",
        ),
        (
            {"training": fedavg.plan.training.model_copy(update={"learning_rate": 0.5})},
            ["rate"],
            "local (other rate)",
        ),
    ):
        changed = fedavg.model_copy(update={"plan": fedavg.plan.model_copy(update=update)})
        summary = summarise(study(tmp_path), "tiny", [0], [local, changed], [])
        transfer = summary.methods[1].main_transfer
        assert transfer is not None
        assert transfer.differs == differs
        printed = StringIO()
        show(summary, Console(file=printed, width=200))
        assert shown in printed.getvalue()


def test_one_seed_leaves_the_noise_unknown(tmp_path: Path) -> None:
    summary = report(tmp_path, seeds=1)
    transfer = summary.methods[1].main_transfer
    assert transfer is not None
    assert (transfer.verdict, transfer.losers, transfer.unjudged) == ("one draw", [], True)
    printed = StringIO()
    show(summary, Console(file=printed, width=200))
    assert "unknown: one seed" in printed.getvalue()
