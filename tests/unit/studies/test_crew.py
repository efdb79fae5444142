"""The silos of one run: a new host after a kill, and several workers on Ray."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import psutil
import pytest

from client_agent.errors import EngineUnusable
from client_agent.storage.round_folder import UPDATE
from client_agent.transport.admin_client import Operator
from studies.clients import SharedModels
from studies.crew import local_crew
from studies.federated_run import create_federation, wait_until_published
from studies.methods import methods_of
from studies.results import cells_of
from studies.silo_work import Enrol, ReadRoundNotes, ScoreFinalWeights, TakePart
from studies.worker_context import WorkerContext
from tests.scene.coordinator import ADMIN_TOKEN, Served
from tests.scene.studies import silo_table, study, write_pools, write_study
from tests.scene.waiting import wait_until
from tests.unit.studies.test_ray_engine import begun, compared, needs_ray

ONE_ROUND = """
[method.once]
like = "fedavg"
adapter = { kind = "lora", same_architecture_rank = 0 }
rounds.total = 1
"""


def write_many_silos(folder: Path, count: int) -> Path:
    """Write a study of so many silos, each with two examples."""
    silos = [
        silo_table(f"s{number:04d}", ("copy", "flip")[number % 2], examples=2) for number in range(count)
    ]
    file = write_study(folder, *silos)
    write_pools(folder, max(20, 2 * count))
    text = file.read_text().replace("tests = 8", "tests = 2").replace("validation = 2", "validation = 1")
    file.write_text(text)
    return file


def finished(folder: Path, out: str, *arguments: str) -> Any:
    """Run `tessera compare` to its end, and return its report."""
    process = begun(folder, out, *arguments, "--json")
    printed, stderr = process.communicate(timeout=1400)
    assert process.returncode == 0, stderr
    return json.loads(printed)


def assert_alike(value: Any, expected: Any) -> None:
    """Check that two reports are equal but for 1e-5 in their numbers."""
    if isinstance(expected, dict):
        assert value.keys() == expected.keys()
        for key, item in expected.items():
            assert_alike(value[key], item)
    elif isinstance(expected, list):
        assert len(value) == len(expected)
        for item, counterpart in zip(value, expected, strict=True):
            assert_alike(item, counterpart)
    else:
        assert value == (pytest.approx(expected, abs=1e-5) if isinstance(expected, float) else expected)


def silo_workers() -> list[psutil.Process]:
    children = psutil.Process().children(recursive=True)
    return [process for process in children if "ray::SiloWorker" in " ".join(process.cmdline())]


@pytest.mark.slow
def test_a_new_host_continues_from_the_silos_folders(tmp_path: Path, coordinator: Served) -> None:
    read = study(tmp_path, more=ONE_ROUND)
    (cell,) = cells_of(read, methods_of(read, ["once"]), [0])
    names = [silo.name for silo in read.silo]
    with Operator(coordinator.url, ADMIN_TOKEN) as operator:
        context = WorkerContext(read, tmp_path / "out", operator, SharedModels())
        with local_crew(context, cell) as first:
            federation = create_federation(cell, read, first, operator, None)
            operator.post(f"{federation.path}/start")
            for silo in read.silo:
                federation.enrol(silo)
            first.run([names[0]], TakePart(1))
            first.run([names[1]], TakePart(1, until=UPDATE))
            folders = [first.host.member(name).workspace.rounds.open(1) for name in names]
            updates = [folder.read(UPDATE) for folder in folders]
        with local_crew(context, cell) as second:
            second.run(names, Enrol("a token that was redeemed"))
            second.run(names, TakePart(1))
            assert [folder.read(UPDATE) for folder in folders] == updates
            wait_until_published(federation, 1)
            assert {note.learning_rate for note in second.run(names, ReadRoundNotes(1)).values()} == {0.01}
            scores = second.run(names, ScoreFinalWeights())
    assert all(final.scores.scores["loss"].count == 8 for final in scores.values())


@needs_ray
def test_shares_have_equal_sizes_and_few_base_models(tmp_path: Path) -> None:
    from studies.ray_crew import shares

    mixed = [silo_table(f"s{number}", model="SL"[number % 2]) for number in range(5)]
    read = study(tmp_path, *mixed)
    assert shares(read, 2) == [["s1", "s3"], ["s0", "s2", "s4"]]
    assert shares(read, 9) == [["s1"], ["s3"], ["s0"], ["s2"], ["s4"]]
    assert shares(read, 1) == [["s1", "s3", "s0", "s2", "s4"]]


@needs_ray
def test_a_node_has_room_for_whole_workers_only() -> None:
    from studies.ray_pool import room_of

    assert room_of({"CPU": 8.0}, 0) == 8
    assert room_of({"CPU": 8.0, "GPU": 2.0}, 0.6) == 2
    assert room_of({"CPU": 8.0, "GPU": 2.0}, 0.25) == 8
    assert room_of({"CPU": 3.0, "GPU": 2.0}, 0.25) == 3
    assert room_of({"CPU": 8.0, "GPU": 3.0}, 2) == 1
    assert room_of({"CPU": 8.0}, 0.25) == 0


@needs_ray
def test_clusters_too_small_for_silo_workers_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from studies import ray_pool
    from studies.ray_setup import RaySetup

    monkeypatch.setattr(ray_pool.ray, "nodes", lambda: [{"Alive": True, "Resources": {"CPU": 7.0}}])
    setup = RaySetup(study(tmp_path), "127.0.0.1", "run", "code", {}, silo_workers=4)
    pool: Any = ray_pool.RayPool(setup, None, tmp_path, None)  # type: ignore[arg-type]
    pool.require_room(1)
    with pytest.raises(EngineUnusable, match="2 runs at a time with 4 silo workers each are 8, and the"):
        pool.require_room(2)


@needs_ray
@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_two_silo_workers_report_as_one_process(tmp_path: Path) -> None:
    silos = [
        silo_table(name, model=model) for name, model in (("aster", "S"), ("birch", "L"), ("cedar", "S"))
    ]
    write_study(tmp_path, *silos, silo_table("dahlia", "flip", joins_after=1))
    methods = ("--methods", "local,fedmosaic", "--workers", "1")
    local = finished(tmp_path, "processes", *methods)
    spread = finished(tmp_path, "ray", *methods, "--engine", "ray", "--silo-workers", "2")
    assert compared(spread) == compared(local)
    assert "dahlia: round 2" in (tmp_path / "ray/cells/fedmosaic-seed-0/log.txt").read_text()


@needs_ray
@pytest.mark.long
@pytest.mark.timeout(3000)
def test_a_hundred_silos_report_as_in_one_process(tmp_path: Path) -> None:
    write_many_silos(tmp_path, 100)
    methods = ("--methods", "fedmosaic", "--workers", "1")
    local = finished(tmp_path, "processes", *methods)
    assert compared(
        finished(tmp_path, "ray", *methods, "--engine", "ray", "--silo-workers", "2")
    ) == compared(local)


@needs_ray
@pytest.mark.long
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("summed", [False, True], ids=["plain", "summed"])
def test_a_killed_silo_worker_costs_no_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, summed: bool
) -> None:
    sums = '[method.summed]\nlike = "once"\nprivacy.secure_sum.minimum = 3\n'
    write_study(
        tmp_path,
        *(silo_table(f"s{number}") for number in range(6)),
        more=ONE_ROUND + (sums if summed else ""),
    )
    write_pools(tmp_path, 60)
    method = ("--methods", "summed" if summed else "once", "--workers", "1")
    undisturbed = finished(tmp_path, "processes", *method)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setenv("RAY_TMPDIR", "/tmp")  # the paths of its sockets must be short
    process = begun(tmp_path, "ray", *method, "--engine", "ray", "--silo-workers", "2", "--json")
    pattern = "tessera-compare-*/cells/*/clients/*/*/rounds/000001/trained.safetensors"
    wait_until(lambda: list(tmp_path.glob(pattern)), seconds=900, event="the first trained silo")
    for worker in silo_workers():
        worker.kill()
    printed, stderr = process.communicate(timeout=1400)
    assert process.returncode == 0, stderr
    if summed:  # a sum rounds its inputs at random, so no two runs are equal to the bit
        assert_alike(compared(json.loads(printed)), compared(undisturbed))
    else:
        assert compared(json.loads(printed)) == compared(undisturbed)
    log = next((tmp_path / "ray" / "cells").glob("*/log.txt")).read_text()
    assert set(re.findall(r"silo worker (\d) ended .* its 3 silos continue", log)) == {"1", "2"}


@needs_ray
@pytest.mark.long
@pytest.mark.timeout(3000)
def test_a_fair_comparison_searches_rates_with_silo_workers(tmp_path: Path) -> None:
    file = write_study(tmp_path, more="[fair]\nrates = [0.01, 1e30]\n" + ONE_ROUND)
    text = file.read_text().replace("plan.training.learning_rate = 0.01\n", "")
    file.write_text(text.replace("validation = 2", "validation = 16"))
    write_pools(tmp_path, 60)
    methods = ("--methods", "local_lora,fedit", "--workers", "1")
    local = finished(tmp_path, "processes", *methods)
    spread = finished(tmp_path, "ray", *methods, "--engine", "ray", "--silo-workers", "2")
    assert compared(spread) == compared(local)
    trials = spread["methods"][0]["trials"]
    assert {trial["rate"]: trial["loss"] is None for trial in trials} == {0.01: False, 1e30: True}


@needs_ray
@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.skipif(not os.environ.get("TESSERA_MANY_SILOS"), reason="a thousand silos: TESSERA_MANY_SILOS=1")
def test_a_thousand_silos_take_part_in_a_round(tmp_path: Path) -> None:
    write_many_silos(tmp_path, 1000)
    method = ("--methods", "fedavg", "--workers", "1", "--engine", "ray", "--silo-workers", "2")
    report = finished(tmp_path, "ray", *method)
    assert len(report["methods"][0]["clients"]) == 1000
