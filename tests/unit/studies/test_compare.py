"""A comparison runs missing cells only, and resumes after a kill."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import psutil
import pytest

from client_agent.agent_entries import PREFIXES
from client_agent.errors import FolderInUse
from client_agent.storage.rate_store import RateSearch
from studies import shared_files, simulate
from studies.clients import SharedModels
from studies.compare import Comparison
from studies.methods import methods_of
from studies.partition_record import describe_partition
from studies.results import CellResult, cells_of, store_result, stored_result
from studies.run_cell import run_cell
from studies.shared_rates import SharedRates
from studies.study import read_study
from studies.worker_context import WorkerContext
from studies.worker_pool import Pool
from tests.scene.agent_processes import TESSERA
from tests.scene.studies import result, silo_table, write_pools, write_study
from tests.scene.waiting import wait_until
from tests.unit.studies.comparisons import planned_comparison, run_compare

THREE = (silo_table("aster"), silo_table("birch", model="L"), silo_table("late", joins_after=1))


def finish(comparison: Comparison, method: str, seed: int) -> CellResult:
    cell = next(c for c in comparison.cells if (c.method, c.seed) == (method, seed))
    cell_result = result(method, seed, {"aster": (1, 0.5), "birch": (1, 0.3)})
    cell_result = cell_result.model_copy(update={"digest": cell.digest})
    store_result(cell, comparison.out, cell_result)
    return cell_result


def missing_labels(comparison: Comparison) -> list[str]:
    return [cell.label for cell in comparison.missing()]


def test_a_finished_run_is_not_run_again(tmp_path: Path) -> None:
    comparison = planned_comparison(tmp_path)
    previous = finish(comparison, "fedavg", 0)
    assert missing_labels(planned_comparison(tmp_path)) == [
        "local, seed 0",
        "local, seed 1",
        "fedavg, seed 1",
    ]
    assert planned_comparison(tmp_path).results() == [previous]


def test_results_of_other_examples_or_steps_are_ignored(tmp_path: Path) -> None:
    finish(planned_comparison(tmp_path), "fedavg", 0)
    assert len(planned_comparison(tmp_path).missing()) == 3
    plan = {"training": {"steps": 3}}
    for changed in (planned_comparison(tmp_path, plan=plan), planned_comparison(tmp_path, tests=7)):
        assert len(changed.missing()) == 4
    more = read_study(tmp_path / "study.toml").with_examples(5)
    assert len(Comparison.planned(more, tmp_path / "out", ["local", "fedavg"], None).missing()) == 4
    write_pools(tmp_path, count=19)
    fewer = read_study(tmp_path / "study.toml")
    assert len(Comparison.planned(fewer, tmp_path / "out", ["local", "fedavg"], None).missing()) == 4


def test_a_truncated_result_is_ignored(tmp_path: Path) -> None:
    comparison = planned_comparison(tmp_path)
    finish(comparison, "fedavg", 0)
    cell = next(cell for cell in comparison.cells if cell.label == "fedavg, seed 0")
    file = cell.folder(comparison.out) / "result.json"
    file.write_bytes(file.read_bytes()[:-10])
    assert stored_result(cell, comparison.out) is None


def test_stored_layers_are_deleted_after_the_last_run(tmp_path: Path) -> None:
    comparison = planned_comparison(tmp_path)
    for cell in comparison.cells:
        finish(comparison, cell.method, cell.seed)
    (comparison.out / PREFIXES / "model").mkdir(parents=True)
    simulate(comparison.study, methods=["local", "fedavg"], out=comparison.out)
    assert not (comparison.out / PREFIXES).exists()


def test_fresh_discards_results(tmp_path: Path) -> None:
    comparison = planned_comparison(tmp_path)
    finish(comparison, "fedavg", 0)
    comparison.forget()
    assert len(planned_comparison(tmp_path).missing()) == 4


def test_fresh_discards_searched_rates(tmp_path: Path) -> None:
    rates = SharedRates.of(shared_files.FolderFiles(planned_comparison(tmp_path).out))
    rates.write("key", RateSearch(chosen=0.01))
    planned_comparison(tmp_path).forget()
    assert SharedRates.of(rates.files).read("key").chosen is None


def test_a_partial_report_names_the_missing_runs(tmp_path: Path) -> None:
    comparison = planned_comparison(tmp_path)
    finish(comparison, "fedavg", 0)
    report = comparison.reported()
    assert [m.method for m in report.methods] == ["fedavg"]
    assert len(report.missing) == 3
    assert json.loads((comparison.out / "report.json").read_text())["study"] == "study"
    records = json.loads((comparison.out / "partition.json").read_text())
    assert records == [describe_partition(comparison.study, seed).model_dump(mode="json") for seed in (0, 1)]


Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def start() -> Iterator[Start]:
    """Start `tessera compare` on a study; terminate it at the end of the test."""
    with ExitStack() as stack:

        def begin(folder: Path, *arguments: str) -> subprocess.Popen[str]:
            inherited = {k: v for k, v in os.environ.items() if not k.startswith("TESSERA_")}
            process = stack.enter_context(
                subprocess.Popen(
                    [
                        TESSERA,
                        "compare",
                        str(folder / "study.toml"),
                        "--out",
                        str(folder / "out"),
                        *arguments,
                    ],
                    env={**inherited, "HF_HUB_OFFLINE": "1"},
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    text=True,
                )
            )
            stack.callback(process.terminate)
            return process

        yield begin


def test_an_invalid_study_is_refused_before_any_run(tmp_path: Path) -> None:
    file = write_study(tmp_path, silo_table("aster"), silo_table("birch", examples=17))
    for arguments, expected in (
        ((), "has 20 different examples, and aster, birch need 21"),
        (("--methods", "fedsgd"), "unknown method fedsgd; choose from local, local_lora"),
        (("--seeds", "-1"), "'-1' is not a list of seeds; write whole numbers from 0 on, such as 0,1,2"),
        (("--seeds", "0,0"), "0 is repeated in '0,0'; name it once"),
        (("--seeds", "1,01"), "is not a list of seeds; write whole numbers from 0 on, such as 0,1,2"),
        (("--seeds", ""), "has an empty item; write a list such as 0,1,2"),
        (("--methods", ","), "has an empty item; write a list such as local,fedmosaic"),
        (("--methods", "local,fedavg,local"), "local is repeated"),
    ):
        code, message = run_compare(file, *arguments)
        assert code != 0
        assert expected in message
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("place", ["file", "file/below", "/proc/none"])
def test_an_unwritable_folder_is_refused_before_any_run(tmp_path: Path, place: str) -> None:
    file = write_study(tmp_path)
    (tmp_path / "file").write_text("mine")
    code, message = run_compare(file, "--out", str(tmp_path / place))
    assert code == 1
    assert "is not a writable folder" in message
    assert "pass another one" in message
    assert (tmp_path / "file").read_text() == "mine"


def test_two_comparisons_do_not_share_a_folder(tmp_path: Path) -> None:
    database = tmp_path / "out" / "coordinator" / "tessera.db"
    with planned_comparison(tmp_path).claimed():
        database.parent.mkdir()
        database.write_text("of the one that runs")
        code, message = run_compare(tmp_path / "study.toml", "--fresh")
        assert code == 1
        assert f"another comparison writes to {tmp_path / 'out'}; wait until it ends" in message
        with pytest.raises(FolderInUse), planned_comparison(tmp_path).claimed():
            pytest.fail("claimed twice")
    assert database.read_text() == "of the one that runs"
    with planned_comparison(tmp_path).claimed():
        pass


@pytest.mark.slow
@pytest.mark.parametrize("finished_runs", [4, 3, 0])
def test_the_exit_status_is_1_with_missing_results(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, finished_runs: int
) -> None:
    monkeypatch.setattr(signal, "signal", lambda *_: None)  # Ctrl-C goes on being for the tests
    comparison = planned_comparison(tmp_path)
    for cell in comparison.cells[:finished_runs]:
        finish(comparison, cell.method, cell.seed)
    monkeypatch.setattr(Pool, "run", lambda self, cells, workers, follow: None)  # nobody fails, nobody works
    code, message = run_compare(tmp_path / "study.toml", "--methods", "local,fedavg")
    assert code == (0 if finished_runs == 4 else 1)
    assert (f"{4 - finished_runs} of 4 runs are missing" in message) == (finished_runs < 4)


@pytest.mark.slow
def test_measured_seconds_exclude_alignment(tmp_path: Path) -> None:
    read = read_study(write_study(tmp_path))
    (cell,) = cells_of(read, methods_of(read, ["local"]), [0])
    context = WorkerContext(read, tmp_path / "out", None, SharedModels())
    began = time.monotonic()
    done = run_cell(context, cell, lambda rounds, doing: None)
    took = time.monotonic() - began
    (pack,) = (tmp_path / "out" / "packs").glob("*.safetensors")
    since_pack = time.time() - pack.stat().st_mtime
    assert 0 < done.wall_seconds < since_pack + 0.05 < took
    assert done.cpu_seconds < since_pack + 0.05


@pytest.mark.long
@pytest.mark.timeout(1500)
def test_a_killed_comparison_resumes_with_equal_results(tmp_path: Path, start: Start) -> None:
    write_study(tmp_path, *THREE)
    arguments = ("--seeds", "0", "--workers", "1", "--methods", "local,fedmosaic,fedavg", "--json")
    process = start(tmp_path, *arguments)
    out = tmp_path / "out"
    wait_until(
        lambda: (out / "cells" / "fedmosaic-seed-0" / "clients").exists(),
        seconds=400,
        event="a federated run",
    )
    children = psutil.Process(process.pid).children(recursive=True)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    wait_until(lambda: not any(worker.is_running() for worker in children), event="the end of its processes")
    first = (out / "cells" / "local-seed-0" / "result.json").read_bytes()
    process = start(tmp_path, *arguments)
    printed, stderr = process.communicate(timeout=400)
    assert process.returncode == 0, stderr
    assert "1 of 3 runs were already finished" in stderr
    assert (out / "cells" / "local-seed-0" / "result.json").read_bytes() == first
    report = json.loads(printed)
    assert [method["method"] for method in report["methods"]] == ["local", "fedmosaic", "fedavg"]
    fedmosaic = report["methods"][1]
    assert fedmosaic["bytes_up"] > 1000
    assert fedmosaic["latecomers"][0]["curve"]["steps"] == [0, 2]
    assert (out / "report.html").exists()
    process = start(tmp_path, "--seeds", "0", "--methods", "fedmosaic", "--json", "--fresh")
    printed, stderr = process.communicate(timeout=400)
    assert process.returncode == 0, stderr
    (unbroken,) = json.loads(printed)["methods"]
    assert unbroken["served"] == fedmosaic["served"]
    assert unbroken["trained"] == fedmosaic["trained"]


@pytest.mark.long
@pytest.mark.timeout(1500)
def test_a_failed_run_is_named_with_its_log(tmp_path: Path, start: Start) -> None:
    wild = '[method.wild]\nlike = "local"\ntraining.learning_rate = 1e38\ntraining.max_grad_norm = 1e38\n'
    write_study(tmp_path, more=wild)
    process = start(tmp_path, "--seeds", "0", "--workers", "1", "--methods", "wild,local")
    printed, stderr = process.communicate(timeout=400)
    assert process.returncode == 1
    log = tmp_path / "out" / "cells" / "wild-seed-0" / "log.txt"
    assert "wild, seed 0 failed" in stderr
    assert str(log) in stderr
    assert "Traceback" in log.read_text()
    assert "local" in printed


@pytest.mark.long
@pytest.mark.timeout(1500)
def test_ctrl_c_leaves_no_process_and_explains_resuming(tmp_path: Path, start: Start) -> None:
    long = "".join(
        f'[method.{name}]\nlike = "{like}"\ntraining.steps = 100000\n'
        for name, like in (("long", "local"), ("long_together", "fedavg"))
    )
    write_study(tmp_path, more=long)
    process = start(tmp_path, "--seeds", "0", "--workers", "2", "--methods", "long,long_together")
    out = tmp_path / "out"
    wait_until(lambda: list(out.glob("cells/*/log.txt")), seconds=400, event="a run")
    children = psutil.Process(process.pid).children(recursive=True)
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "repeat the command to run the remaining ones" in stderr
    wait_until(lambda: not any(worker.is_running() for worker in children), event="the end of its processes")
