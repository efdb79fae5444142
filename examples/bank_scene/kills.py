"""Kill an agent while it trains, an agent between its masked input and its unmasking, and the coordinator."""

from __future__ import annotations

import re

from client_agent.storage.round_folder import SECURE, TRAINED
from examples.agents import DemoFailed
from examples.bank_scene.observer import Observer
from examples.bank_scene.record import Kill
from examples.bank_scene.silos import Silos
from studies.coordinator_process import CoordinatorProcess

_WATCH_SECONDS = 0.005
_MASKED, _UNMASK = "put-2", "put-4"


def kill_in_training(silos: Silos, observer: Observer, name: str, number: int) -> Kill:
    """Kill an agent after its first steps of a round, and start it again.

    Raises:
        DemoFailed: it had trained already when it died.
    """
    step = re.compile(rf"round {number}, expert \d+: step (\d+)/\d+")
    silos.until(lambda: bool(step.search(silos.log(name))), f"{name} to train", every=_WATCH_SECONDS)
    process = silos.kill(name)
    steps = step.findall(silos.log(name))
    folder, choice = observer.folder(name, number), observer.choices(name).rounds.get(number)
    if folder is None or choice is None or folder.has(TRAINED):
        raise DemoFailed(f"{name} was killed in round {number}, not while it trained; run the scene again")
    progress = f"experts {', '.join(map(str, choice.trained))} drawn, step {len(steps)} done, nothing stored"
    return Kill(
        round=number,
        name=name,
        phase="training",
        process=process,
        next_process=silos.revive(name),
        progress=progress,
    )


def kill_before_unmasking(silos: Silos, observer: Observer, name: str, number: int) -> Kill:
    """Kill an agent after it sent its masked input of a sum, and start it again.

    Raises:
        DemoFailed: it had unmasked already when it died.
    """
    step = re.compile(rf"round {number}: sum, session (\d+), step masked: \d+ bytes sent")

    def has_sent() -> bool:
        return len(step.findall(silos.log(name))) > 1  # the first are the counts

    silos.until(has_sent, f"{name} to send its masked input", every=_WATCH_SECONDS)
    process = silos.kill(name)
    session = int(step.findall(silos.log(name))[-1])
    folder = observer.folder(name, number)
    secure = folder.path / SECURE / f"{session:03d}" if folder is not None else None
    if secure is None or not (secure / _MASKED).is_file() or (secure / _UNMASK).is_file():
        raise DemoFailed(f"{name} was killed in round {number}, not before unmasking; run the scene again")
    answered = observer.round(number)["secure_sum"]["sessions"][-1]["answered"]
    size = (secure / _MASKED).stat().st_size
    progress = f"{size} bytes of masked input sent, nothing unmasked; the coordinator had {answered}"
    return Kill(
        round=number,
        name=name,
        phase="between masked input and unmasking",
        process=process,
        next_process=silos.revive(name),
        progress=progress,
    )


def restart_coordinator(
    coordinator: CoordinatorProcess, silos: Silos, observer: Observer, number: int
) -> Kill:
    """Kill the coordinator while some members of a round are ready and others train, and start it again."""

    def is_half() -> bool:
        newest = observer.newest()
        return bool(newest) and newest["round"] == number and newest["counts"]["arrived"] > 0

    silos.until(is_half, f"members of round {number} to be ready", every=_WATCH_SECONDS)
    newest = observer.newest()
    process = coordinator.process
    coordinator.kill()
    coordinator.start()
    progress = f"{newest['counts']['arrived']} of {newest['counts']['joined']} members were ready"
    return Kill(
        round=number,
        name="coordinator",
        phase="coordinator",
        process=process,
        next_process=coordinator.process,
        progress=f"round {newest['state']}: {progress}",
    )
