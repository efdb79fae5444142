"""Two replicas on one PostgreSQL: one is killed, the other frozen beyond its lease, again and again."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from coordinator.observability.fault_points import Place
from tests.faults.stress import summed
from tests.faults.stress.agents import wait_for_the_end
from tests.faults.stress.one_hot import Trial, check, taking_part
from tests.faults.stress.stored import Published, published_in
from tests.faults.stress.summed import SummedTrial
from tests.scene.replica_processes import Coordinator

LEASE_SECONDS = 1.0
_FROZEN_SECONDS = 2.5 * LEASE_SECONDS
_TO_FREEZE: tuple[Place, ...] = ("claim-committed", "block-staged", "update-written")
_OVERTAKEN = "aggregation-overtaken"
_OPENED = "sum-session-done"
_AGGREGATING = _TO_FREEZE[:2]
_TO_KILL: tuple[Place | None, ...] = ("publication-written", "update-committed", None)


@dataclass
class Havoc:
    """What was done to the replicas, and how often one found its round taken over when it went on."""

    frozen_at: list[Place] = field(default_factory=list)
    killed_at: list[Place] = field(default_factory=list)
    overtaken: int = 0
    published: Published = field(default_factory=dict)


class _Tormentor(threading.Thread):
    """Freezes one replica and kills the other in turn, each at the next place that it comes to."""

    def __init__(self, frozen: Coordinator, killed: Coordinator) -> None:
        super().__init__(name="tormentor", daemon=True)
        self.havoc = Havoc()
        self._frozen, self._killed = frozen, killed
        self._done = threading.Event()
        self.rounds_go_on = threading.Event()  # not while replicas are started, lest all rounds be over
        self.fault: BaseException | None = None

    def run(self) -> None:
        try:
            self._torment()
        except BaseException as fault:
            self.fault = fault
        finally:
            self.rounds_go_on.set()

    def _torment(self) -> None:
        for freeze, kill in zip(_TO_FREEZE, _TO_KILL, strict=True):
            self._start(self._frozen, freeze, freeze=True)
            if not self._wait(self._frozen.is_frozen):
                return
            if not self._thaw_later(freeze):
                return
            self.havoc.frozen_at.append(freeze)
            if kill is None:
                return
            self._start(self._killed, kill)
            if not self._wait(self._killed.has_died):
                return
            self.havoc.killed_at.append(kill)
            self._start(self._killed)

    def _thaw_later(self, place: Place) -> bool:
        """Resume the frozen replica; one that aggregates, once its work is done elsewhere."""
        if place not in _AGGREGATING:
            self._done.wait(_FROZEN_SECONDS)
            self._frozen.thaw()
            return True
        published = self._killed.count_logged("round-published")
        if not self._wait(lambda: self._killed.count_logged("round-published") > published):
            return False
        overtaken = self._frozen.count_logged(_OVERTAKEN)
        self._frozen.thaw()
        return self._wait(lambda: self._frozen.count_logged(_OVERTAKEN) > overtaken)

    def _start(self, replica: Coordinator, place: Place | None = None, *, freeze: bool = False) -> None:
        self.rounds_go_on.clear()
        replica.kill()
        replica.start(place, freeze=freeze)
        self.rounds_go_on.set()

    def _wait(self, condition: Callable[[], bool]) -> bool:
        while not condition():
            if self._done.wait(0.01):
                return False
        return True

    def finish(self) -> None:
        """Do nothing any more."""
        self._done.set()
        self.join()


def frozen_and_killed(database_url: str, folder: Path, trial: Trial) -> Havoc:
    """Torment two replicas while a federation runs on them; nothing is lost, doubled or changed.

    Raises:
        AssertionError: something was, or nobody came to a place.
    """
    replicas = [
        Coordinator(database_url, folder / f"log{i}", TESSERA_LEASE_SECONDS=str(LEASE_SECONDS))
        for i in (0, 1)
    ]
    for replica in replicas:
        replica.start()
    tormentor = _Tormentor(*replicas)
    try:
        tormentor.start()
        with taking_part(trial, [replica.url for replica in replicas], tormentor.rounds_go_on) as (
            federation_id,
            agents,
        ):
            wait_for_the_end(agents)
            tormentor.finish()
            check(trial, database_url, federation_id, agents)
    finally:
        tormentor.finish()
        for replica in replicas:
            replica.kill()
    if tormentor.fault is not None:
        raise AssertionError(str(tormentor.fault)) from tormentor.fault
    assert [error for replica in replicas for error in replica.errors] == []
    havoc = tormentor.havoc
    assert (len(havoc.frozen_at), len(havoc.killed_at)) == (len(_TO_FREEZE), len(_TO_KILL) - 1), havoc
    havoc.overtaken = sum(replica.count_logged(_OVERTAKEN) for replica in replicas)
    havoc.published = published_in(database_url)
    return havoc


def undisturbed(database_url: str, folder: Path, trial: Trial) -> Published:
    """Run the same federation on a single replica without faults."""
    alone = Coordinator(database_url, folder / "log")
    alone.start()
    try:
        with taking_part(trial, [alone.url]) as (federation_id, agents):
            wait_for_the_end(agents)
            check(trial, database_url, federation_id, agents)
    finally:
        alone.kill()
    return published_in(database_url)


def frozen_while_opening(database_url: str, folder: Path, trial: SummedTrial) -> int:
    """Freeze a replica amid opening a sum, until the other one has opened it; return who was overtaken.

    Raises:
        AssertionError: a total is wrong, or something was lost, doubled or left over.
    """
    lease = {"TESSERA_LEASE_SECONDS": str(LEASE_SECONDS)}
    frozen, running = (Coordinator(database_url, folder / f"log{i}", **lease) for i in (0, 1))
    frozen.start("sum-block-staged", freeze=True)
    running.start()
    done = threading.Event()

    def thaw() -> None:
        while not done.wait(0.01):
            if frozen.is_frozen():
                opened = running.count_logged(_OPENED)
                while running.count_logged(_OPENED) == opened and not done.wait(0.01):
                    pass
                frozen.thaw()
                return

    thawing = threading.Thread(target=thaw, name="thaw", daemon=True)
    thawing.start()
    try:
        with summed.summing(trial, [frozen.url, running.url]) as (federation_id, agents, admin):
            summed.go_on_to_the_end(federation_id, agents, admin)
            summed.check(trial, database_url, federation_id, agents)
    finally:
        done.set()
        thawing.join()
        for replica in (frozen, running):
            replica.kill()
    assert [*frozen.errors, *running.errors] == []
    return frozen.count_logged("sum-overtaken")
