"""Kills of a coordinator at all marked places and at random moments."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
from dataclasses import dataclass
from pathlib import Path

from coordinator.db.engine import Database
from coordinator.observability.fault_points import PLACES, VARIABLE, Place
from coordinator.storage import payloads
from tests.faults.stress import summed
from tests.faults.stress.agents import wait_for_the_end
from tests.faults.stress.one_hot import Trial, check, taking_part
from tests.faults.stress.summed import SummedTrial
from tests.scene.replica_processes import Coordinator, CrashRestarter

# Nothing is collected within an hour of its writing: at that place dies another process than a coordinator.
_COLLECTING: Place = "collection-deleted"
OF_MOVES = [place for place in PLACES if place.startswith("payload-")]
"""Those of `tests.unit.coordinator.storage.test_payload_moves`."""

OF_OWNERS = [place for place in PLACES if place.startswith("owner-")]
"""Those of `tests.unit.coordinator.storage.test_ownership`."""

OF_SUMS = [place for place in PLACES if place.startswith(("ready-", "sum-"))]
"""Places that only a federation comes to whose updates are summed."""

_ELSEWHERE = (_COLLECTING, *OF_SUMS, *OF_MOVES, *OF_OWNERS)
_WHILE_SERVING = [place for place in PLACES if place not in _ELSEWHERE]
_LEFT_OVER = 4


@dataclass(frozen=True)
class Kills:
    """How often a coordinator died, and how long it took to be ready again, in seconds."""

    died_at: list[str]
    back_after: list[float]


def at_every_place(database_url: str, folder: Path, trial: Trial) -> Kills:
    """Die at each place in turn, the first ones while clients enrol; nothing acknowledged is lost.

    Raises:
        AssertionError: something was lost, doubled, changed or left over, or a place was never come to.
    """
    coordinator = Coordinator(database_url, folder / "log")
    undertaker = CrashRestarter(coordinator, _WHILE_SERVING)
    undertaker.start()
    try:
        with taking_part(trial, [coordinator.url]) as (federation_id, agents):
            wait_for_the_end(agents)
            assert undertaker.died_at == _WHILE_SERVING, (
                f"never died at {set(_WHILE_SERVING) - {*undertaker.died_at}}"
            )
            leave_over(database_url)
            assert while_collecting(database_url) == -signal.SIGKILL
            check(trial, database_url, federation_id, agents)
    finally:
        undertaker.finish()
        coordinator.kill()
    assert coordinator.errors == []
    return Kills([*undertaker.died_at, _COLLECTING], undertaker.back_after)


def at_every_place_of_a_sum(database_url: str, folder: Path, trial: SummedTrial) -> Kills:
    """Die at each place of a sum in turn; every total is exact, and nothing of its inputs is left.

    Raises:
        AssertionError: a total is wrong, something was lost or left over, or a place was never come to.
    """
    coordinator = Coordinator(database_url, folder / "log")
    undertaker = CrashRestarter(coordinator, OF_SUMS)
    undertaker.start()
    try:
        with summed.summing(trial, [coordinator.url]) as (federation_id, agents, admin):
            summed.go_on_to_the_end(federation_id, agents, admin)
            assert undertaker.died_at == OF_SUMS, f"never died at {set(OF_SUMS) - {*undertaker.died_at}}"
            summed.check(trial, database_url, federation_id, agents)
    finally:
        undertaker.finish()
        coordinator.kill()
    assert coordinator.errors == []
    return Kills([*undertaker.died_at], undertaker.back_after)


def at_random(
    database_url: str, folder: Path, trial: Trial, *, seed: int, every: float, **settings: str
) -> Kills:
    """Die at random moments, `every` seconds on average, until the federation is finished.

    Raises:
        AssertionError: something was lost, doubled or changed.
    """
    draw = random.Random(seed)
    coordinator = Coordinator(database_url, folder / "log", **settings)
    back_after = [coordinator.start()]
    finished = threading.Event()

    def keep_killing() -> None:
        while not finished.wait(draw.expovariate(1 / every)):
            coordinator.kill()
            back_after.append(coordinator.start())

    killer = threading.Thread(target=keep_killing, name="killer", daemon=True)
    try:
        with taking_part(trial, [coordinator.url]) as (federation_id, agents):
            killer.start()
            wait_for_the_end(agents)
            finished.set()
            killer.join()
            check(trial, database_url, federation_id, agents)
    finally:
        finished.set()
        coordinator.kill()
    assert coordinator.errors == []
    return Kills(["random"] * (len(back_after) - 1), back_after[1:])


def leave_over(database_url: str) -> None:
    """Store payloads that nobody refers to."""
    database = Database(database_url)
    try:
        with database.write() as session:
            for fill in range(_LEFT_OVER):
                payloads.store_bytes(session, bytes([fill]) * 2**21)
    finally:
        database.close()


def while_collecting(database_url: str) -> int:
    """Collect what nobody refers to in a process that dies amid the second of it; return its exit status."""
    program = (
        "from datetime import timedelta\n"
        "import sys\n"
        "from coordinator.observability import fault_points\n"
        "from coordinator.storage import garbage_collection\n"
        "from coordinator.db.engine import Database\n"
        "fault_points.arm()\n"
        "garbage_collection.collect(Database(sys.argv[1]), grace=timedelta(0))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, database_url],
        env=os.environ | {VARIABLE: f"{_COLLECTING}:2"},
        check=False,
    )
    return done.returncode
