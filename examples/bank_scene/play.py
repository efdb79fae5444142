"""Play the scene: rounds go on by themselves; silos come and go between them, and processes die in them."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from client_agent.transport.admin_client import Operator
from examples.agents import DemoFailed, Program
from examples.bank_scene import cast as times
from examples.bank_scene.cast import ENROLLED_BEFORE, LEAVES_AFTER, VICTIMS, Cast
from examples.bank_scene.kills import kill_before_unmasking, kill_in_training, restart_coordinator
from examples.bank_scene.narration import Narrator
from examples.bank_scene.observer import Observer
from examples.bank_scene.record import Kill, Record, RoundFacts
from examples.bank_scene.silos import Silos
from studies.bank_record import BankRecord, read_bank_record
from studies.coordinator_process import CoordinatorProcess


@dataclass
class Scene:
    """A running federation and its record so far."""

    cast: Cast
    coordinator: CoordinatorProcess
    operator: Operator
    path: str
    silos: Silos
    narrator: Narrator
    rounds: list[RoundFacts] = field(default_factory=list)
    kills: list[Kill] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.observer = Observer(self.operator, self.path, self.silos)

    def record(self, seconds: float) -> Record:
        return Record(
            seed=self.cast.seed,
            groups=self.cast.group_of,
            arrivals=self.cast.arrivals,
            leaves_after=LEAVES_AFTER,
            leaving=self.cast.leaving,
            newcomer=self.cast.newcomer,
            rounds=self.rounds,
            bank=self.bank(),
            kills=self.kills,
            seconds=seconds,
        )

    def bank(self) -> BankRecord:
        bank = read_bank_record(self.operator, self.path)
        if bank is None:
            raise DemoFailed("the federation has no bank of experts")
        return bank


def play(cast: Cast, out: Path, forking: Program, narrator: Narrator) -> Record:
    """Play the whole scene in a folder, and return its record.

    Raises:
        DemoFailed: an agent stopped, a round was abandoned, or nothing moved for too long.
    """
    began = time.monotonic()
    cast.write_data(out / "data")
    coordinator = CoordinatorProcess(out / "coordinator")
    try:
        coordinator.start()
        with Operator(coordinator.url, coordinator.token) as operator:
            created = operator.post("/v1/federations", cast.plan.model_dump(mode="json"))
            path = f"/v1/federations/{created['id']}"
            configure = partial(_write_config, cast, out, coordinator.url)
            silos = Silos(forking, operator, str(created["id"]), out / "silos", configure, VICTIMS)
            scene = Scene(cast, coordinator, operator, path, silos, narrator)
            try:
                _play_rounds(scene)
                silos.wait()
                return scene.record(time.monotonic() - began)
            finally:
                silos.stop()
    finally:
        coordinator.stop()


def _write_config(cast: Cast, out: Path, url: str, name: str) -> Path:
    return cast.write_config(name, out / "data", out / "silos" / name, url)


def _play_rounds(scene: Scene) -> None:
    cast, operator = scene.cast, scene.operator
    scene.narrator.enrolling(cast.arrivals[0], 0)
    scene.silos.join(cast.arrivals[0], enrol=True)
    operator.post(f"{scene.path}/start")
    for number in range(1, cast.plan.rounds.total + 1):
        _wait_for_opening(scene, number)
        # A paused federation enrols nobody, so that whoever joins later is enrolled before.
        scene.silos.enrol(cast.arrivals.get(number + ENROLLED_BEFORE, []))
        # It pauses before a change of its members, so that the next round begins with all of them.
        changes = _changes(scene, number)
        if changes:
            operator.post(f"{scene.path}/pause")
        for kill in _kills(scene, number):
            scene.kills.append(kill())
            scene.narrator.killed(scene.kills[-1])
        _wait_for_publication(scene, number)
        scene.rounds.append(scene.observer.facts(number))
        scene.narrator.published(scene.record(0.0), number)
        for change in changes:
            change()
        if changes:
            operator.post(f"{scene.path}/start")


def _changes(scene: Scene, number: int) -> list[Callable[[], None]]:
    """Return the actions that change the members after a round."""
    cast, silos, changes = scene.cast, scene.silos, list[Callable[[], None]]()
    if number == LEAVES_AFTER:
        changes += [lambda: scene.narrator.leaving(cast.leaving, number), lambda: silos.leave(cast.leaving)]
    if number in cast.arrivals:
        names = cast.arrivals[number]
        changes += [lambda: scene.narrator.enrolling(names, number), lambda: silos.join(names)]
    return changes


def _kills(scene: Scene, number: int) -> list[Callable[[], Kill]]:
    """Return the kills in a round."""
    silos, observer = scene.silos, scene.observer
    due: dict[int, Callable[[int], Kill]] = {
        times.TRAINING_KILL: partial(kill_in_training, silos, observer, times.TRAINING_VICTIM),
        times.COORDINATOR_KILL: partial(restart_coordinator, scene.coordinator, silos, observer),
        times.UNMASKING_KILL: partial(kill_before_unmasking, silos, observer, times.UNMASKING_VICTIM),
    }
    return [partial(due[number], number)] if number in due else []


def _wait_for_opening(scene: Scene, number: int) -> None:
    scene.silos.until(lambda: scene.observer.newest().get("round", 0) >= number, f"round {number} to open")
    if scene.observer.newest()["round"] > number:
        raise DemoFailed(
            f"round {number} was over before it was looked at; run the scene on a quieter machine"
        )


def _wait_for_publication(scene: Scene, number: int) -> None:
    def is_published() -> bool:
        view = scene.observer.round(number)
        if view["state"] == "abandoned":
            raise DemoFailed(f"round {number} was abandoned: {view['reason']}")
        return bool(view["state"] == "published")

    scene.silos.until(is_published, f"the publication of round {number}")
