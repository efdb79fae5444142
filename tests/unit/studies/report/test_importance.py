"""Importance measures: rank correlations by hand, and charts, page and results with them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from client_agent.adapters.variational.measures import Measures, MeasuresFile
from client_agent.transport.admin_client import Operator
from studies.clients import SharedModels
from studies.methods import methods_of
from studies.report.importance import importance_of, spearman
from studies.report.importance_charts import draw_heat_maps, draw_measures
from studies.report.page import write_page
from studies.report.summary import Report, summarise
from studies.report.tables import show
from studies.results import CellResult, cells_of, store_result, stored_result
from studies.run_cell import run_cell
from studies.worker_context import WorkerContext
from tests.scene.coordinator import ADMIN_TOKEN, Served
from tests.scene.studies import result, silo_table, study

NAMES = ("aster", "birch", "cedar")


def measured(modules: Mapping[str, float], kl: Sequence[float] = (0.1, 0.3)) -> MeasuresFile:
    rounds = [
        Measures(round=i, density=0.9 / i, residual=0.2 * i, kl=value, importance=(0.5, 1, 2), bytes=900)
        for i, value in enumerate(kl, start=1)
    ]
    return MeasuresFile(rounds=rounds, modules=dict(modules))


def run(
    method: str, seed: int, files: Mapping[str, MeasuresFile], models: Mapping[str, str] = {}
) -> CellResult:
    summary = result(method, seed, {name: (1, 0.8, 0.6) for name in NAMES})
    clients = [
        c.model_copy(update={"measures": files.get(c.name), "base_model": models.get(c.name, "tiny-s")})
        for c in summary.clients
    ]
    return summary.model_copy(update={"clients": clients})


def report(folder: Path, runs: list[CellResult], *silos: str) -> Report:
    read = study(folder, *(silos or tuple(map(silo_table, NAMES))))
    return summarise(read, "tiny", sorted({entry.seed for entry in runs}), runs, [])


def layers(count: int, step: float) -> dict[str, float]:
    """A module for q and v of each layer, the last the most important for a `step` above 0."""
    names = [f"l{layer}.{role}" for layer in range(count) for role in "qv"]
    return {name: 1 + step * place for place, name in enumerate(names)}


def test_spearman_correlates_ranks_and_equal_values_share_one() -> None:
    rising = {"a": 1.0, "b": 2.0, "c": 300.0, "d": 301.0}
    assert spearman(rising, {"a": 0.1, "b": 0.2, "c": 0.3, "d": 9.0}) == pytest.approx(1)
    assert spearman(rising, {"a": 4.0, "b": 3.0, "c": 2.0, "d": 1.0}) == pytest.approx(-1)
    # ranks 0 1 2 3 and 0 2 1 3: 1 - 6 (1 + 1) / (4 (16 - 1))
    assert spearman(rising, {"a": 0.0, "b": 2.0, "c": 1.0, "d": 3.0}) == pytest.approx(0.8)
    # ranks 0 1 2 3 and 0.5 0.5 2.5 2.5: covariance 4, norms sqrt(5) and 2
    assert spearman(rising, {"a": 1.0, "b": 1.0, "c": 2.0, "d": 2.0}) == pytest.approx(2 / 5**0.5)


def test_spearman_is_none_without_ranks_or_common_modules() -> None:
    assert spearman({"a": 1.0, "b": 1.0}, {"a": 1.0, "b": 2.0}) is None
    assert spearman({"a": 1.0, "b": 2.0}, {"a": 1.0, "c": 2.0}) is None


def test_only_founders_of_one_base_model_are_compared(tmp_path: Path) -> None:
    files = {
        "aster": measured(layers(4, 0.1)),
        "birch": measured(layers(4, 0.2)),
        "cedar": measured(layers(4, -0.05)),
    }
    importance = importance_of([run("ca_pfl", 0, files, {"cedar": "tiny-l"})], NAMES)
    assert importance is not None
    assert importance.agreement is not None
    assert importance.agreement.values == pytest.approx([1])
    both = importance_of([run("ca_pfl", 0, files), run("ca_pfl", 1, files)], NAMES)
    assert both is not None
    assert both.agreement is not None
    assert both.agreement.values == pytest.approx([-1 / 3, -1 / 3])
    assert both.seed == 0
    # smallest, largest and mean: 1, 1.7, 1.35; 1, 2.4, 1.7; .65, 1, .825
    assert both.spread.mean == pytest.approx((0.7 / 1.35 + 1.4 / 1.7 + 0.35 / 0.825) / 3)
    late = summarise(
        study(tmp_path, silo_table("aster"), silo_table("birch"), silo_table("cedar", joins_after=1)),
        "tiny",
        [0],
        [run("ca_pfl", 0, files)],
        [],
    ).methods[0]
    assert late.importance is not None
    assert late.importance.agreement is not None
    assert late.importance.agreement.values == pytest.approx([1])
    assert set(late.importance.measures) == set(NAMES)


@pytest.mark.slow
def test_table_and_page_have_the_last_rounds_figures(tmp_path: Path) -> None:
    files = {
        "aster": measured(layers(4, 0.1), kl=(0.1, 0.3)),
        "birch": measured(layers(4, -0.1), kl=(0.1, 0.5)),
    }
    summary = report(tmp_path, [run("fedavg", 0, {}), run("ca_pfl", 0, files)])
    fedavg, ca_pfl = summary.methods
    assert fedavg.importance is None
    assert ca_pfl.importance is not None
    assert ca_pfl.importance.kl.values == pytest.approx([0.4])
    assert ca_pfl.importance.density.values == pytest.approx([0.45])
    printed = StringIO()
    show(summary, Console(file=printed, width=250))
    write_page(summary, tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text()
    for text in (printed.getvalue(), page):
        assert "0.450" in text
        assert "0.400" in text
        assert "-1.000" in text
    assert "Module by module: ca_pfl, seed 0" in page
    assert "Module by module: fedavg" not in page
    assert "share of the update sent" in page
    assert Report.model_validate_json(summary.model_dump_json()) == summary


@pytest.mark.slow
def test_pictures_of_importance_need_measures(tmp_path: Path) -> None:
    summary = report(tmp_path, [run("local", 0, {}), run("fedavg", 0, {})])
    assert draw_measures(summary) is None
    assert draw_heat_maps(summary) == {}
    write_page(summary, tmp_path / "report.html")
    assert "importance" not in (tmp_path / "report.html").read_text()
    printed = StringIO()
    show(summary, Console(file=printed, width=250))
    assert "importance" not in printed.getvalue()


def test_a_heat_map_has_panels_per_base_model(tmp_path: Path) -> None:
    files = {
        "aster": measured(layers(4, 0.1)),
        "birch": measured(layers(4, -0.1)),
        "cedar": measured(layers(32, 0.01)),
    }
    summary = report(tmp_path, [run("ca_pfl", 0, files, {"cedar": "llama-1b"})])
    picture = draw_heat_maps(summary)["ca_pfl"]
    texts = re.findall(r">([^<>]+)</text>", picture)
    assert {"tiny-s", "llama-1b"} <= set(texts)
    assert "aster (1.350)" in texts  # its mean importance
    small, large = (texts[texts.index(start) :] for start in ("aster (1.350)", "cedar (1.315)"))
    assert [t for t in small if re.fullmatch(r"l\d+\.[qv]", t)][:8] == list(layers(4, 0))
    # 64 rows do not fit: a layer has one label, in the order of depth
    assert [t for t in large if re.fullmatch(r"l\d+\.[qv]", t)] == [f"l{layer}.q" for layer in range(32)]


def test_a_result_without_measures_is_read(tmp_path: Path) -> None:
    old = run("ca_pfl", 0, {}).model_dump(mode="json")
    for client in old["clients"]:
        del client["measures"]
    assert [client.measures for client in CellResult.model_validate(old).clients] == [None] * 3


@pytest.mark.slow
def test_a_run_stores_its_clients_measures(tmp_path: Path, served: Served) -> None:
    read = study(tmp_path)
    with Operator(served.url, ADMIN_TOKEN) as operator:
        place = WorkerContext(read, tmp_path / "out", operator, SharedModels())
        for method in ("ca_pfl", "fedavg"):
            (cell,) = cells_of(read, methods_of(read, [method]), [0])
            store_result(cell, place.out, run_cell(place, cell, lambda rounds, doing: None))
            done = stored_result(cell, place.out)
            assert done is not None
            for client in done.clients:
                if method == "fedavg":
                    assert client.measures is None
                    continue
                assert client.measures is not None
                assert [entry.round for entry in client.measures.rounds] == [1, 2]
                assert all(entry.kl > 0 for entry in client.measures.rounds)
                assert set(client.measures.modules) == set(layers(4, 0))
