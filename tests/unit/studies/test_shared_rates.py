"""Learning rates shared by the runs of a comparison: one search, without cost for a method."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from client_agent.agent_entries import RATES
from client_agent.storage.rate_store import RateSearch
from studies import shared_rates
from studies.clients import SharedModels
from studies.methods import methods_of
from studies.results import CellResult, cells_of
from studies.run_cell import run_cell
from studies.shared_files import FolderFiles
from studies.shared_rates import SharedRates
from studies.worker_context import WorkerContext
from tests.scene.studies import study


@pytest.mark.slow
def test_the_costs_of_a_run_exclude_its_search(tmp_path: Path) -> None:
    read = study(tmp_path, more='[method.again]\nlike = "local"\n')
    read = read.model_copy(update={"plan": read.plan | {"training": {"steps": 2, "max_length": 64}}})
    context = WorkerContext(read, tmp_path / "out", None, SharedModels())
    results: list[CellResult] = []
    for cell in cells_of(read, methods_of(read, ["local", "again"]), [0]):
        began = time.process_time()
        results.append(run_cell(context, cell, lambda rounds, doing: None))
        spent = results[-1].cpu_seconds + results[-1].search_cpu_seconds
        assert 0 < spent <= time.process_time() - began
    first, second = results
    assert [client.learning_rate for client in first.clients] == [c.learning_rate for c in second.clients]
    assert first.search_cpu_seconds > 10 * second.search_cpu_seconds
    assert len(list((context.out / RATES).glob("*/*.json"))) == 2


def test_searches_of_other_code_are_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    SharedRates.of(FolderFiles(tmp_path)).write("key", RateSearch(chosen=0.01))
    assert SharedRates.of(FolderFiles(tmp_path)).read("key").chosen == 0.01
    monkeypatch.setattr(shared_rates, "code_of_runs", lambda: "f" * 64)
    assert SharedRates.of(FolderFiles(tmp_path)).read("key").chosen is None


def test_a_rate_is_searched_by_one_run_only(tmp_path: Path) -> None:
    first, yours = SharedRates.of(FolderFiles(tmp_path)), SharedRates.of(FolderFiles(tmp_path))
    events: list[str] = []

    def wait() -> None:
        with yours.searching("key"):
            events.append(str(yours.read("key").chosen))

    with first.searching("key"):
        with yours.searching("other"):
            events.append("other")
        waiting = threading.Thread(target=wait)
        waiting.start()
        time.sleep(0.1)
        events.append("mine")
        first.write("key", RateSearch(chosen=0.01))
    waiting.join(10)
    assert events == ["other", "mine", "0.01"]
    assert yours.spent.wall >= 0.1  # waiting is no cost of a run


def test_a_killed_runs_lock_is_released(tmp_path: Path) -> None:
    code = (
        "import sys, time; from pathlib import Path; "
        "from studies.shared_files import FolderFiles; "
        "from studies.shared_rates import SharedRates\n"
        "with SharedRates.of(FolderFiles(Path(sys.argv[1]))).searching('key'):\n"
        " print('in', flush=True); time.sleep(60)"
    )
    process = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == "in\n"
        process.kill()
    with SharedRates.of(FolderFiles(tmp_path)).searching("key"):
        pass
