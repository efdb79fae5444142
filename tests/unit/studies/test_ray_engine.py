"""Studies on Ray: the report of processes; a killed worker, Ctrl-C, a kill, and refused clusters."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from client_agent.errors import EngineUnusable
from studies.card_share import memory_needed, require_share
from studies.clients import SharedModels
from studies.methods import methods_of
from studies.results import cells_of
from studies.worker_context import WorkerContext
from tests.scene.agent_processes import TESSERA
from tests.scene.studies import study, write_study
from tests.scene.waiting import wait_until
from tests.unit.studies.comparisons import run_compare

needs_ray = pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="Ray is not installed")
SECONDS = {"wall_seconds", "cpu_seconds", "search_cpu_seconds"}
BYTES = {"bytes_up", "bytes_down", "bytes", "budgets", "up", "down"}
"""Bodies are compressed, and hold ids and keys of each run: two runs by processes differ as well."""
GIB = 2**30


def begun(folder: Path, out: str, *arguments: str) -> subprocess.Popen[str]:
    """Start `tessera compare` in a process of its own: Ray leaves threads and handlers behind."""
    inherited = {k: v for k, v in os.environ.items() if not k.startswith("TESSERA_")}
    return subprocess.Popen(
        [
            TESSERA,
            "compare",
            str(folder / "study.toml"),
            "--out",
            str(folder / out),
            "--seeds",
            "0",
            *arguments,
        ],
        env={**inherited, "HF_HUB_OFFLINE": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def working_folders() -> set[Path]:
    return set(Path("/tmp").glob("tessera-compare-*"))


def compared(value: Any) -> Any:
    """Return a report without its seconds and bytes."""
    if isinstance(value, dict):
        return {key: compared(item) for key, item in value.items() if key not in SECONDS | BYTES}
    return [compared(item) for item in value] if isinstance(value, list) else value


def processes_of(parent: subprocess.Popen[str]) -> list[psutil.Process]:
    return psutil.Process(parent.pid).children(recursive=True)


def workers_of(parent: subprocess.Popen[str]) -> list[psutil.Process]:
    return [p for p in processes_of(parent) if "ray::CellWorker" in " ".join(p.cmdline())]


@needs_ray
@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_a_report_on_ray_equals_that_of_processes(tmp_path: Path) -> None:
    write_study(tmp_path)
    reports, folders_before = [], working_folders()
    for engine in ("processes", "ray"):
        arguments = ("--methods", "local,fedavg", "--seeds", "0", "--workers", "2", "--engine", engine)
        process = begun(tmp_path, engine, *arguments, "--json")
        printed, stderr = process.communicate(timeout=700)
        assert process.returncode == 0, stderr
        reports.append(json.loads(printed))
        assert "finished" in (tmp_path / engine / "cells" / "fedavg-seed-0" / "log.txt").read_text()
    assert compared(reports[0]) == compared(reports[1])
    up = [report["methods"][1]["bytes_up"] for report in reports]
    assert up[0] == pytest.approx(up[1], rel=0.01)
    # Another comparison on this machine may be at work; its folder goes with it.
    deadline = time.monotonic() + 300
    while working_folders() - folders_before and time.monotonic() < deadline:
        time.sleep(1)
    assert not working_folders() - folders_before
    packs = [
        sorted(f.name for f in (tmp_path / e / "packs").glob("*.safetensors")) for e in ("processes", "ray")
    ]
    assert packs[0] == packs[1] != []


@needs_ray
@pytest.mark.long
@pytest.mark.timeout(1500)
def test_a_killed_worker_loses_its_cell_only(tmp_path: Path) -> None:
    write_study(tmp_path)
    process = begun(
        tmp_path, "out", "--methods", "local", "--seeds", "0,1", "--workers", "1", "--engine", "ray"
    )
    assert process.stderr is not None
    stderr = process.stderr
    wait_until(lambda: "local, seed 0: started" in stderr.readline(), seconds=400, event="the run")
    (worker,) = wait_until(lambda: workers_of(process), seconds=400, event="a worker")
    worker.kill()
    _, printed = process.communicate(timeout=600)
    assert process.returncode == 1
    assert "local, seed 0 failed: its worker ended" in printed
    assert "1 of 2 runs are missing" in printed
    cells = tmp_path / "out" / "cells"
    assert [(cells / f"local-seed-{seed}" / "result.json").exists() for seed in (0, 1)] == [False, True]


@needs_ray
@pytest.mark.long
@pytest.mark.timeout(1500)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_ctrl_c_and_a_kill_leave_no_process(tmp_path: Path, number: signal.Signals) -> None:
    write_study(tmp_path, more='[method.endless]\nlike = "fedavg"\ntraining.steps = 1000000\n')
    process = begun(
        tmp_path, "out", "--methods", "endless", "--seeds", "0", "--engine", "ray", "--workers", "2"
    )
    wait_until(lambda: workers_of(process), seconds=400, event="a worker")
    wait_until(lambda: list(tmp_path.glob("out/coordinator/tessera.db")), seconds=400, event="a coordinator")
    children = processes_of(process)
    process.send_signal(number)
    _, stderr = process.communicate(timeout=120)
    if number is signal.SIGINT:
        assert process.returncode == 130
        assert "repeat the command to run the remaining ones" in stderr
    wait_until(lambda: not any(child.is_running() for child in children), event="the end of its processes")


@needs_ray
@pytest.mark.long
@pytest.mark.timeout(900)
def test_a_cluster_without_authentication_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_study(tmp_path)
    monkeypatch.setenv("RAY_AUTH_TOKEN", "f" * 64)
    ray = str(Path(sys.executable).parent / "ray")
    open_to_all = {**os.environ, "RAY_AUTH_MODE": "disabled", "RAY_USAGE_STATS_ENABLED": "0"}
    start = [ray, "start", "--head", "--port=0", "--num-cpus=1", "--include-dashboard=false"]
    started = subprocess.run(start, env=open_to_all, capture_output=True, text=True, check=True)
    address = re.findall(r"address='([0-9.:]+)'", started.stdout)[0]
    try:
        process = begun(tmp_path, "out", "--engine", "ray", "--address", address, "--workers", "1")
        _, stderr = process.communicate(timeout=400)
    finally:
        for part in psutil.process_iter(["cmdline"]):
            if address in " ".join(part.info["cmdline"] or []):
                part.kill()
    assert process.returncode == 1
    assert "runs code of anybody who reaches it" in " ".join(stderr.split())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--address", "auto"), "only with --engine ray"),
        (("--gpus-per-worker", ".5"), "only with --engine ray"),
        (("--engine", "ray", "--address", "auto"), "pass the number of runs that the cluster has room for"),
        (("--engine", "dask"), "'dask' is not one of 'processes', 'ray'"),
    ],
)
def test_inconsistent_ray_options_are_refused(
    tmp_path: Path, arguments: tuple[str, ...], message: str
) -> None:
    code, stderr = run_compare(write_study(tmp_path), *arguments)
    assert code == 2
    assert message in stderr
    assert not (tmp_path / "out").exists()


def test_too_small_gpu_shares_name_a_sufficient_one() -> None:
    require_share(0.5, 80 * GIB, 39 * GIB)
    with pytest.raises(
        EngineUnusable, match=r"needs 39.6 GiB.*pass --gpus-per-worker 0.5 or more: 2 workers"
    ):
        require_share(0.25, 80 * GIB, 39 * GIB)
    with pytest.raises(EngineUnusable, match="take fewer bits"):
        require_share(1, 24 * GIB, 39 * GIB)
    with pytest.raises(EngineUnusable, match="see no GPU"):
        require_share(0.5, 0, 39 * GIB)


@pytest.mark.slow
def test_worker_memory_is_that_of_the_largest_plan(tmp_path: Path) -> None:
    read = study(tmp_path, more='[method.batches]\nlike = "local"\ntraining.batch_size = 64\n')
    context = WorkerContext(read, tmp_path / "out", None, SharedModels())
    small, large = (list(cells_of(read, methods_of(read, [name]), [0])) for name in ("local", "batches"))
    assert 0 < memory_needed(context, small) < memory_needed(context, large)
    assert memory_needed(context, small + large) == memory_needed(context, large)
