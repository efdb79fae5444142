"""The whole system keeps its promises whatever happens, and what happened can be replayed."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.simulation.campaign import schedules
from tests.simulation.lease_mutants import drives_on_what_it_saw
from tests.simulation.world import play

ROOT = Path(__file__).parent.parent.parent
FEW, MANY = 10, 60


def _play(first: int, number: int) -> Counter[str]:
    facts = Counter[str]()
    for outcome in schedules(first, number):
        assert outcome.violation is None, (
            f"{outcome.violation}; `python -m tests.simulation --replay {outcome.seed}` tells what happened"
        )
        facts.update(outcome.facts)
    return facts


def test_a_few_schedules_of_faults_break_no_promise() -> None:
    facts = _play(0, FEW)
    assert facts["rounds published"] > FEW / 2
    assert facts["clock jumps"]
    assert facts["disk full"]
    assert any(fact.startswith("replica dies") for fact in facts)
    assert any(fact.startswith("agent dies") for fact in facts)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_many_schedules_of_faults_break_no_promise() -> None:
    facts = _play(FEW, MANY)
    places = {fact for fact in facts if "dies at" in fact}
    wanted = {"read", "write", "commit", "committed"}
    assert {f"replica dies at {place}" for place in wanted} <= places
    assert {f"agent dies at {place}" for place in ("send", "received", "fsync", "replace")} <= places


def test_a_seed_is_played_the_same_again() -> None:
    first, second = play(3, trace=True), play(3, trace=True)
    assert first.trace == second.trace
    assert first.digest == second.digest
    assert first.steps > 100
    assert play(4).digest != first.digest


@pytest.mark.slow
def test_a_seed_is_played_the_same_by_other_processes() -> None:
    told = [_told_by_a_process(hashing) for hashing in ("1", "2")]
    assert told[0] == told[1]
    assert play(3).digest in told[0]


def test_without_comparing_and_setting_it_would_do_harm_to_act_on_an_old_look() -> None:
    """The mutant that drops the comparison is found; the old look alone does no harm."""
    with drives_on_what_it_saw():
        assert _play(30, 3)["rounds published"]


def _told_by_a_process(hashing: str) -> str:
    command = [sys.executable, "-m", "tests.simulation", "--replay", "3"]
    environment = os.environ | {"PYTHONHASHSEED": hashing}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
