"""Pictures and the table of a paper show recorded metrics only."""

from __future__ import annotations

import json
from pathlib import Path
from typing import cast

import httpx
import pytest

from client_agent.transport.admin_client import Operator
from schemas.messages.experts import BankRoundView, ExpertEvent, ExpertView
from studies.bank_record import BankRecord, read_bank_record
from studies.report.charts import chart_styles
from studies.report.experts_charts import expert_utilization, negative_transfer
from studies.report.latex import latex_table
from studies.report.pictures import figures_of, write_paper, write_pictures
from studies.report.summary import Report, summarise
from tests.scene.studies import result, study


def expert(number: int, **fields: object) -> ExpertView:
    shown = {"status": "active", "born": 0, "ended": None, "parent": None, "merged_into": None, "prior": 0.5}
    measured = {"utilisation": 0.5, "revision": 1, "digest": None, "bytes": 0}
    return ExpertView.model_validate({"expert": number, **shown, **measured, **fields})


BANK = BankRecord(
    experts=[expert(1), expert(2, status="archived", ended=2), expert(3, born=2)],
    rounds=[
        BankRoundView(round=1, members=4, users={"1": 3, "2": 1}, rejects=0),
        BankRoundView(round=2, members=4, users={"1": 4, "2": 0}, rejects=3),
        BankRoundView(round=3, members=5, users={"1": 2, "3": 3}, rejects=0),
    ],
    events=[
        ExpertEvent(change="born", round=2, expert=3, peer=0, reason="3 of 4 members fit none", numbers={}),
        ExpertEvent(change="pruned", round=2, expert=2, peer=None, reason="nobody uses it", numbers={}),
    ],
)


def report(folder: Path, *, bank: BankRecord | None = BANK) -> Report:
    alone = {"aster": (1, 0.5), "birch": (1, 0.3)}
    federated = {"aster": (1, 0.3), "birch": (1, 0.4)}
    runs = [
        run
        for seed in (0, 1)
        for run in (
            result("local", seed, alone),
            result("fedavg", seed, federated).model_copy(update={"bank": bank}),
        )
    ]
    return summarise(study(folder), "tiny_s", [0, 1], runs, [])


def test_shares_cover_rounds_that_counted_an_expert() -> None:
    assert BANK.share(1) == [(1, 0.75), (2, 1.0), (3, 0.4)]
    assert BANK.share(3) == [(3, 0.6)]


def test_utilization_has_lines_for_experts_and_marked_changes(tmp_path: Path) -> None:
    figure = expert_utilization(report(tmp_path))
    assert figure is not None
    (axes,) = figure.axes
    labels = axes.get_legend_handles_labels()[1]
    assert labels == ["expert 1", "expert 2", "expert 3", "born", "archived"]
    assert [text.get_text() for text in axes.texts] == ["3", "2"]
    assert [text.xy for text in axes.texts] == [(3, 0.6), (2, 0.0)], (
        "a newborn is marked where it is used first"
    )
    assert expert_utilization(report(tmp_path, bank=None)) is None


def test_marks_of_changes_at_one_point_are_apart(tmp_path: Path) -> None:
    pruned = next(event for event in BANK.events if event.change == "pruned")
    twin = pruned.model_copy(update={"change": "merged", "peer": 1})
    bank = BANK.model_copy(update={"events": [*BANK.events, twin]})
    figure = expert_utilization(report(tmp_path, bank=bank))
    assert figure is not None
    (axes,) = figure.axes
    assert len({text.xy for text in axes.texts}) == len(axes.texts) == 3


def test_negative_transfer_is_paired_by_client_and_seed(tmp_path: Path) -> None:
    summary = report(tmp_path)
    figure = negative_transfer(summary, chart_styles(summary))
    assert figure is not None
    (axes,) = figure.axes
    heights = axes.containers[0].lines[0].get_ydata()  # type: ignore[attr-defined]
    assert list(heights) == pytest.approx([-0.2, 0.1])
    assert [label.get_text() for label in axes.get_xticklabels()] == ["aster", "birch"]


def test_worst_clients_are_those_of_each_round(tmp_path: Path) -> None:
    local, fedavg = report(tmp_path).methods
    assert [loss.mean for loss in local.worst.loss] == [1, 0.5]
    assert [loss.mean for loss in fedavg.worst.loss] == [1, 0.4]


@pytest.mark.slow
def test_only_pictures_with_records_are_written(tmp_path: Path) -> None:
    with_bank, without = report(tmp_path), report(tmp_path, bank=None)
    names = ["differences", "over_rounds", "over_bytes"]
    names += ["worst_client", "negative_transfer", "client_losses", "round_bytes"]
    assert list(figures_of(without)) == names
    pictures = write_pictures(with_bank, tmp_path / "out")
    assert [file.name for file in pictures] == [
        "differences.png",
        "over_rounds.png",
        "over_bytes.png",
        "expert_utilization.png",
        "worst_client.png",
        "negative_transfer.png",
        "client_losses.png",
        "round_bytes.png",
    ]
    assert all(file.read_bytes().startswith(b"\x89PNG") for file in pictures)
    written = write_paper(without, tmp_path / "paper")
    assert [file.name for file in written] == [*(f"{name}.pdf" for name in names), "results.tex"]
    assert written[0].read_bytes().startswith(b"%PDF")


def test_the_table_has_means_and_standard_errors(tmp_path: Path) -> None:
    lines = latex_table(report(tmp_path)).splitlines()
    assert lines[0] == "% tiny_s, seeds 0, 1: means, and their standard errors"
    heads = r"method & adapter & loss & minus local & worst client & exact\_match & minus local & minus alone"
    assert lines[3] == heads + r" & clients that lose & kB \\"
    start = r"fedavg & P, Q & $0.350 \pm 0.000$ & $-0.050 \pm 0.000$ & $0.400 \pm 0.000$ & "
    assert lines[6].startswith(start)
    assert r" & $-0.050 \pm 0.000$ & 1 of 2 & " in lines[6]


def test_pages_of_a_bank_are_read_in_order() -> None:
    pages = {
        "/f/experts": {"rounds": [BANK.rounds[2]], "events": [], "next": "3"},
        "/f/experts?after=3": {"rounds": BANK.rounds[1::-1], "events": BANK.events, "next": None},
    }

    class Pages:
        def get(self, path: str) -> object:
            page = pages[path]
            return {"experts": BANK.experts, **page}

    assert read_bank_record(cast("Operator", Pages()), "/f") == BANK


def test_a_federation_without_a_bank_has_no_record() -> None:
    empty = {"experts": [], "rounds": [], "events": [], "next": None}
    transport = httpx.MockTransport(lambda request: httpx.Response(200, content=json.dumps(empty)))
    operator = Operator("http://coordinator", "token")
    operator._client = httpx.Client(base_url="http://coordinator", transport=transport)
    assert read_bank_record(operator, "/v1/federations/f") is None
