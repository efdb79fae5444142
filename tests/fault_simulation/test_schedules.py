"""The whole system keeps its promises whatever happens, and what happened can be replayed."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.fault_simulation.campaign import schedules, schedules_by, workers
from tests.fault_simulation.lease_mutants import drives_on_what_it_saw
from tests.fault_simulation.scheduler import Process, Scheduler
from tests.fault_simulation.waits import Slots
from tests.fault_simulation.world import play

ROOT = Path(__file__).parent.parent.parent
FEW, MANY = 10, 60
SUMMED = 15
"""A seed whose schedule has sums."""


def _play(first: int, number: int) -> Counter[str]:
    facts = Counter[str]()
    for outcome in schedules(first, number):
        assert outcome.violation is None, (
            f"{outcome.violation}; `python -m tests.fault_simulation --replay {outcome.seed}` tells what "
            f"happened"
        )
        facts.update(outcome.facts)
    return facts


def test_a_few_schedules_of_faults_break_no_promise() -> None:
    facts = _play(0, FEW)
    assert facts["rounds published"] > FEW / 2
    assert facts["clock jumps"]
    assert facts["disk full"]
    assert facts["coded updates"]
    assert facts["errors carried on"]
    assert facts["packs stored"]
    assert any(fact.startswith("replica dies") for fact in facts)
    assert any(fact.startswith("agent dies") for fact in facts)


def test_rounds_are_summed_and_break_no_promise() -> None:
    facts = _play(SUMMED, 1)
    assert facts["totals (pairwise)"]
    assert facts["sum messages of step unmask"]


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_many_schedules_of_faults_break_no_promise() -> None:
    facts = _play(FEW, MANY)
    places = {fact for fact in facts if "dies at" in fact}
    wanted = {"read", "write", "commit", "committed"}
    assert {f"replica dies at {place}" for place in wanted} <= places
    assert facts["references mismatched"]
    assert facts["packs stored"]
    assert facts["packs replaced"]
    assert facts["packs refused"]
    assert facts["totals (pairwise)"]
    assert facts["sum sessions aborted"]
    assert any(fact.startswith("members dropped") for fact in facts)
    assert any(fact.startswith("agent dies at a sum's") for fact in facts)
    assert {f"agent dies at {place}" for place in ("send", "received", "fsync", "replace")} <= places


def test_a_seed_is_played_the_same_again() -> None:
    first, second = play(3, trace=True), play(3, trace=True)
    assert first.trace == second.trace
    assert first.digest == second.digest
    assert first.steps > 100
    assert play(4).digest != first.digest


@pytest.mark.long
def test_a_seed_is_played_the_same_by_other_processes() -> None:
    told = [_told_by_a_process(hashing) for hashing in ("1", "2")]
    assert told[0] == told[1]
    assert play(3).digest in told[0]


def test_without_comparing_and_setting_it_would_do_harm_to_act_on_an_old_look() -> None:
    """The mutant that drops the comparison is found; the old look alone does no harm."""
    with drives_on_what_it_saw():
        assert _play(30, 3)["rounds published"]


def _told_by_a_process(hashing: str) -> str:
    command = [sys.executable, "-m", "tests.fault_simulation", "--replay", "3"]
    environment = os.environ | {"PYTHONHASHSEED": hashing}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_a_call_that_is_called_off_never_happens() -> None:
    scheduler, process, told = Scheduler(0), Process("somebody"), list[str]()
    off = scheduler.spawn(process, lambda: told.append("called off"), delay=2.0)
    scheduler.spawn(process, lambda: told.append("done"), delay=3.0)
    scheduler.spawn(process, lambda: scheduler.call_off(off), delay=1.0)
    scheduler.run(lambda: False, until=10.0)
    assert told == ["done"]


def test_who_waits_for_a_slot_lets_others_run_and_is_sent_away_in_time() -> None:
    scheduler, replica, another, told = Scheduler(0), Process("replica"), Process("another"), list[str]()
    slots = Slots(scheduler, 1)

    def work(name: str, seconds: float) -> None:
        if slots.acquire(5.0):
            told.append(f"{name} at {scheduler.now:.0f}")
            scheduler.sleep(seconds)
            slots.release()
        else:
            told.append(f"{name} never, at {scheduler.now:.0f}")

    scheduler.spawn(replica, lambda: work("first", 8.0))
    scheduler.spawn(another, lambda: work("elsewhere", 1.0))
    scheduler.spawn(replica, lambda: work("impatient", 1.0), delay=1.0)
    scheduler.spawn(replica, lambda: work("patient", 1.0), delay=4.0)
    scheduler.run(lambda: False, until=20.0)
    assert told == ["first at 0", "elsewhere at 0", "impatient never, at 6", "patient at 8"]


@pytest.mark.slow
def test_processes_side_by_side_play_what_one_plays() -> None:
    with workers(2) as pool:
        told = [outcome.digest for outcome in schedules_by(pool, 3, 2)]
    assert told == [play(3).digest, play(4).digest]


@pytest.mark.slow
def test_weights_of_a_round_that_a_pack_ended_stay_when_another_pack_ends() -> None:
    """Seed 283: I19 was broken, as the weights of the abandoned round were deleted."""
    facts = _play(283, 1)
    assert facts["rounds abandoned with a pack"]
    assert facts["packs ended"]
