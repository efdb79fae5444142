"""The demo's report: figures, verdicts and pages."""

from __future__ import annotations

import itertools
import json
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from examples.demo_tiny import report
from examples.demo_tiny.federated import FederatedResult
from examples.demo_tiny.silos import FOUNDERS, SILOS


def scored(loss: float) -> dict[str, Any]:
    return {"loss": {"value": loss, "count": 128}, "exact_match": {"value": 1 - loss, "count": 128}}


def scores_of(losses: list[float], final: float | None) -> list[dict[str, Any]]:
    rounds: list[dict[str, Any]] = [
        {"served": scored(served), "trained": scored(trained), "kept": "served", "final": None}
        for served, trained in itertools.pairwise([1.0, *losses])
    ]
    rounds[-1]["final"] = scored(final) if final is not None else None
    return rounds


def built(fedmosaic: float, local: float) -> dict[str, Any]:
    ends = dict.fromkeys(report.METHODS, 0.9) | {"fedmosaic": fedmosaic, "local": local}
    scores = {
        method: {
            silo.name: scores_of([end / 2, end + 0.1], end)
            if method in report.FEDERATED
            else scores_of([end / 2, end], None)
            for silo in SILOS
        }
        for method, end in ends.items()
    }
    ids = {silo.name: f"cli_{silo.name}" for silo in SILOS}
    tasks = {silo.name: silo.task for silo in SILOS}
    same_task = [
        [float(tasks[a] == tasks[b]) / sum(tasks[c] == tasks[a] for c in ids) for b in ids] for a in ids
    ]
    half_wrong = [[0.5 * w + 0.5 / len(row) for w in row] for row in same_task]
    result = FederatedResult(
        federation="fed",
        rounds=[
            {"clients": [{"client_id": ids[s.name], "bytes": {"up": 100, "down": 120}} for s in FOUNDERS]}
        ],
        relevance={"clients": list(ids.values()), "relevance": half_wrong, "similarity": half_wrong},
        packs=[
            {
                "base_model": "tiny-l",
                "alignment_set": "sha256:0",
                "bytes": 1,
                "selected": ["b0.v"],
                "errors": {
                    "b0.v": {"a": 0.1, "b_token": 0.2, "b_task": 0.3},
                    "b0.o": {"a": 0.1, "b_token": 0.2, "b_task": 0.9},
                },
            }
        ],
        clients={value: key for key, value in ids.items()},
    )
    return report.build(scores, {"fedmosaic": result}, 12.34)


def test_the_figures_are_those_of_the_clients() -> None:
    summary = built(fedmosaic=0.8, local=0.6)
    assert summary["mean"]["fedmosaic"] == {"loss": pytest.approx(0.8), "exact_match": pytest.approx(0.2)}
    assert summary["worst"]["local"]["loss"] == pytest.approx(0.6)
    assert summary["clients"][0]["methods"]["fedmosaic"]["loss_by_round"] == pytest.approx([0.4, 0.9])
    assert summary["late_joiner"]["local"]["loss_by_round"] == [0.3, 0.6]
    assert (summary["bytes_up_per_client_round"], summary["bytes_down_per_client_round"]) == (100, 120)


def test_the_mass_counts_founders_of_the_same_task() -> None:
    # Half of each row is spread over its task, itself included, the other half over everybody: of the weight
    # on others of the task, cipher silos have 4/5 and 4/7, label silos 1/2 and 1/7 of these halves.
    expected = (4 * (0.5 * 4 / 5 + 0.5 * 4 / 7) + 2 * (0.5 * 1 / 2 + 0.5 * 1 / 7)) / 6
    assert built(0.8, 0.6)["in_cluster_mass"] == pytest.approx(expected)


@pytest.mark.parametrize(
    ("fedmosaic", "local", "verdict", "late"),
    [(0.4, 0.6, "0.200 ahead of", "ahead of"), (0.7, 0.6, "0.100 behind", "not ahead of")],
)
def test_the_verdict_follows_the_figures(fedmosaic: float, local: float, verdict: str, late: str) -> None:
    words = "\n".join(report.verdicts(built(fedmosaic, local)))
    assert f"FedMosaic is {verdict} the better local method (local)" in words
    assert f": {late} local training's end" in words


def test_page_and_table_contain_all_clients(tmp_path: Path) -> None:
    summary = built(0.8, 0.6)
    page = report.write(summary, tmp_path).read_text()
    assert json.loads((tmp_path / "report.json").read_text()) == json.loads(json.dumps(summary))
    assert page.count("<svg") == 6
    printed = StringIO()
    report.show(summary, Console(file=printed, width=200))
    for silo in SILOS:
        assert silo.name in page
        assert silo.name in printed.getvalue()
