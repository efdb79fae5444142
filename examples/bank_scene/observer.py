"""Collect the facts of a round from the coordinator and from the folders of the silos' agents."""

from __future__ import annotations

import time

from client_agent.experts.memory import EXPERTS, ExpertMemory
from client_agent.rounds.training_result import TrainingResult
from client_agent.storage.round_folder import TRAINED, RoundFolder
from client_agent.transport.admin_client import Answer, Operator
from examples.agents import DemoFailed
from examples.bank_scene.record import RoundFacts
from examples.bank_scene.silos import Silos


class Observer:
    """Observes round after round."""

    def __init__(self, operator: Operator, path: str, silos: Silos) -> None:
        self._operator = operator
        self._path = path
        self._silos = silos
        self._last = time.monotonic()

    def newest(self) -> Answer:
        """Return the newest round; {} before the first."""
        rounds = self._operator.get(f"{self._path}/rounds?limit=1")["items"]
        return dict(rounds[0]) if rounds else {}

    def round(self, number: int) -> Answer:
        return self._operator.get(f"{self._path}/rounds/{number}")

    def facts(self, number: int) -> RoundFacts:
        """Return the facts of a round that was just published."""
        view = self.round(number)
        before, self._last = self._last, time.monotonic()
        members = [client["name"] for client in view["clients"] if client["state"] in ("arrived", "ready")]
        return RoundFacts(
            round=number,
            seconds=self._last - before,
            counted=view["secure_sum"]["counted"] or 0,
            sessions=[f"{session['kind']} {session['state']}" for session in view["secure_sum"]["sessions"]],
            choices={name: self.choices(name).rounds[number] for name in members},
            served={name: self._trained(name, number).scores.served["loss"].value for name in members},
        )

    def choices(self, name: str) -> ExpertMemory:
        """Return the stored choices of a silo's agent; empty before its first."""
        home = self._silos.home(name)
        assert home is not None, name
        return ExpertMemory(home / EXPERTS)

    def folder(self, name: str, number: int) -> RoundFolder | None:
        """Return a silo's folder of a round; None before it has one."""
        home = self._silos.home(name)
        path = home / "rounds" / f"{number:06d}" if home is not None else None
        return RoundFolder(path, number) if path is not None and path.is_dir() else None

    def _trained(self, name: str, number: int) -> TrainingResult:
        folder = self.folder(name, number)
        if folder is None or not folder.has(TRAINED):
            raise DemoFailed(f"{name} was counted in round {number}, and its folder has no trained adapter")
        return TrainingResult.from_bytes(folder.read(TRAINED))
