"""Schedules of faults: no broken promise, and exact replay."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.faults.fault_simulation.campaign import missing, schedules, schedules_by, workers
from tests.faults.fault_simulation.lease_mutants import drives_on_what_it_saw
from tests.faults.fault_simulation.world import run_schedule

pytestmark = pytest.mark.usefixtures("prepared_process")

ROOT = Path(__file__).parents[3]
FIRST, MANY = 10, 60


def _counted_facts(first: int, number: int) -> Counter[str]:
    facts = Counter[str]()
    for outcome in schedules(first, number):
        assert outcome.violation is None, (
            f"{outcome.violation}; "
            f"`python -m tests.faults.fault_simulation --replay {outcome.seed}` prints the events"
        )
        facts.update(outcome.facts)
    return facts


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_schedules_of_faults_break_no_promise() -> None:
    facts = _counted_facts(FIRST, MANY)
    places = {fact for fact in facts if "dies at" in fact}
    assert not missing(facts)
    expected = {"read", "write", "commit", "committed"}
    assert {f"replica dies at {place}" for place in expected} <= places
    assert facts["references mismatched"]
    assert facts["packs replaced"]
    assert facts["packs refused"]
    assert facts["totals (pairwise)"]
    assert facts["sum messages of step unmask"]
    assert facts["sum sessions aborted"]
    assert any(fact.startswith("members dropped") for fact in facts)
    assert any(fact.startswith("agent dies at a sum's") for fact in facts)
    assert {f"agent dies at {place}" for place in ("send", "received", "fsync", "replace")} <= places


@pytest.mark.slow
def test_a_seed_determines_the_schedule() -> None:
    first, second = run_schedule(3, trace=True), run_schedule(3, trace=True)
    assert first.trace == second.trace
    assert first.digest == second.digest
    assert first.steps > 100
    assert run_schedule(4).digest != first.digest


@pytest.mark.long
def test_a_seed_determines_the_schedule_across_processes() -> None:
    outputs = [_replay_output(hashing) for hashing in ("1", "2")]
    assert outputs[0] == outputs[1]
    assert run_schedule(3).digest in outputs[0]


@pytest.mark.slow
def test_stale_reads_of_rounds_are_harmless() -> None:
    """The mutant that drops the comparison is found; the old look alone does no harm."""
    with drives_on_what_it_saw():
        assert _counted_facts(30, 3)["rounds published"]


def _replay_output(hashing: str) -> str:
    command = [sys.executable, "-m", "tests.faults.fault_simulation", "--replay", "3"]
    environment = os.environ | {"PYTHONHASHSEED": hashing}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow
def test_worker_processes_run_the_same_schedules() -> None:
    with workers(2) as pool:
        digests = [outcome.digest for outcome in schedules_by(pool, 3, 2)]
    assert digests == [run_schedule(3).digest, run_schedule(4).digest]


@pytest.mark.slow
def test_weights_survive_the_end_of_another_pack() -> None:
    """A schedule such as seed 500051 broke I19: the weights of the abandoned round were deleted."""
    facts = _counted_facts(500051, 1)
    assert facts["rounds abandoned with a pack"]
    assert facts["packs ended"]


@pytest.mark.slow
def test_final_weights_may_reuse_an_abandoned_rounds_number() -> None:
    """A schedule such as seed 137231 seemed to break I19: final weights have the number of round 1."""
    assert _counted_facts(137231, 1)["rounds abandoned"]


@pytest.mark.slow
def test_an_abandoned_rounds_residuals_are_not_added() -> None:
    """A schedule such as seed 429424 broke I15: initial weights of another round had another digest."""
    assert _counted_facts(429424, 1)["rounds abandoned with a pack"]
