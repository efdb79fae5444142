"""One federated method: six agents from the start, a seventh after round 4, everything over HTTP."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from client_agent.model.loading import base_model_slug
from client_agent.simulation.admin_client import Answer, Operator
from examples.demo.alone import PQ_RATE
from examples.demo.silos import (
    EXAMPLES,
    FOUNDERS,
    LATECOMER,
    PIVOT,
    SILOS,
    DemoFailed,
    SiloSetup,
    start_agent,
    write_config,
)
from schemas.messages.recommended import FEDMOSAIC

JOINS_AFTER = 4
_GIVE_UP_SECONDS = 900.0

Report = Callable[[str], None]


@dataclass(slots=True)
class FederatedResult:
    """What a federation left behind, as its status endpoints tell it."""

    federation: str
    rounds: list[Answer]
    relevance: Answer
    packs: list[Answer]
    clients: dict[str, str]
    by_silo: dict[str, list[Answer]] = field(default_factory=dict)


def plan_of(name: str, strategy: str, frames: str, rounds: int) -> Answer:
    """Write down a federation's plan: only what differs from the defaults."""
    return {
        "name": name,
        "strategy": {"name": strategy},
        "rounds": {"total": rounds, "min_clients": len(FOUNDERS), "collect_seconds": 600},
        **FEDMOSAIC,
        "training": {"max_length": 64, "learning_rate": PQ_RATE},
        "signature": {"probe_examples": 12},
        "alignment": {"pivot": base_model_slug(str(PIVOT)), "frames": frames},
    }


def run_federation(
    operator: Operator, plan: Answer, data: Path, folder: Path, report: Report
) -> FederatedResult:
    """Create a federation, run its agents to the end, and read what happened.

    Raises:
        DemoFailed: an agent stopped, or nothing moved for too long.
    """
    federation = operator.post("/v1/federations", plan)["id"]
    path = f"/v1/federations/{federation}"
    operator.put(f"{path}/anchors", json.loads((EXAMPLES / "anchors.json").read_bytes()))
    with _agents(operator, federation, data, folder) as agents:
        operator.post(f"{path}/start")
        _align(operator, path, agents, report)
        for silo in FOUNDERS:
            agents.start(silo)
        agents.enrol(LATECOMER)
        _follow(operator, path, agents, report, until=_published(JOINS_AFTER - 1))
        # The pause only makes sure that the latecomer is up when round 5 opens, and misses none of it.
        operator.post(f"{path}/pause")
        _follow(operator, path, agents, report, until=_published(JOINS_AFTER))
        agents.start(LATECOMER)
        _wait(agents, lambda: _observed(operator, path, LATECOMER.name))
        operator.post(f"{path}/start")
        _follow(operator, path, agents, report, until=_published(plan["rounds"]["total"]))
        agents.wait()
    return _result(operator, federation)


class _Agents:
    """The agents of a federation, each a process with a folder."""

    def __init__(self, operator: Operator, federation: str, data: Path, folder: Path) -> None:
        self._operator = operator
        self._federation = federation
        self._data = data
        self._folder = folder
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._enrolled: set[str] = set()

    def start(self, silo: SiloSetup) -> None:
        """Start a silo's agent, which enrols itself if it has not yet, unless it runs already."""
        if silo.name not in self._running:
            token = None if silo.name in self._enrolled else self._token(silo)
            arguments = ["run", "--config", str(self._config(silo)), "--name", silo.name]
            self._running[silo.name] = start_agent(arguments, self._folder / silo.name, token)

    def enrol(self, silo: SiloSetup) -> None:
        """Enrol a silo without starting its agent."""
        arguments = ["enrol", "--config", str(self._config(silo)), "--name", silo.name]
        process = start_agent(arguments, self._folder / silo.name, self._token(silo))
        process.communicate()
        if process.returncode != 0:
            raise DemoFailed(f"{silo.name} could not enrol: see {self._folder / silo.name / 'agent.log'}")
        self._enrolled.add(silo.name)

    def _config(self, silo: SiloSetup) -> Path:
        return write_config(silo, self._data, self._folder / silo.name, self._operator.url)

    def _token(self, silo: SiloSetup) -> str:
        path = f"/v1/federations/{self._federation}/enrolment-tokens"
        return str(self._operator.post(path, {"client_name": silo.name})["token"])

    def check(self) -> None:
        """Notice an agent that gave up."""
        for name, process in self._running.items():
            if process.poll() not in (None, 0):
                raise DemoFailed(f"agent {name} stopped: see {self._folder / name / 'agent.log'}")

    def wait(self) -> None:
        """Wait until every agent has its final weights and exits."""
        for name, process in self._running.items():
            try:
                process.wait(timeout=120)
            except subprocess.TimeoutExpired as error:
                log = self._folder / name / "agent.log"
                raise DemoFailed(f"agent {name} did not end with its federation: see {log}") from error
        self.check()

    def stop(self) -> None:
        """End what still runs."""
        for process in self._running.values():
            if process.poll() is None:
                process.terminate()
        for process in self._running.values():
            try:
                process.wait(timeout=60)
            except subprocess.TimeoutExpired:
                process.kill()


@contextmanager
def _agents(operator: Operator, federation: str, data: Path, folder: Path) -> Iterator[_Agents]:
    agents = _Agents(operator, federation, data, folder)
    try:
        yield agents
    finally:
        agents.stop()


def _align(operator: Operator, path: str, agents: _Agents, report: Report) -> None:
    """Make one alignment pack per base model, the pivot's first: the others then find it stored."""
    for count, architecture in enumerate(("S", "L"), start=1):
        agents.start(next(silo for silo in FOUNDERS if silo.architecture == architecture))
        report(f"aligning base model {architecture}")
        _wait(agents, lambda: len(operator.get(f"{path}/alignments")["items"]) >= count)  # noqa: B023


def _follow(
    operator: Operator, path: str, agents: _Agents, report: Report, *, until: Callable[[Answer], bool]
) -> None:
    """Show the current round's status until something is the case."""

    def look() -> bool:
        rounds = operator.get(f"{path}/rounds?limit=1")["items"]
        newest = rounds[0] if rounds else {}
        if newest:
            counts, scores = newest["counts"], newest["scores"]
            loss = f", loss {scores['mean']['loss']['value']:.2f}" if scores else ""
            delivered = f"{counts['arrived']} of {counts['joined']} delivered"
            report(f"round {newest['round']} {newest['state']}, {delivered}{loss}")
        return until(newest)

    _wait(agents, look)


def _published(number: int) -> Callable[[Answer], bool]:
    def is_so(newest: Answer) -> bool:
        return bool(newest) and (
            newest["round"] > number or (newest["round"] == number and newest["state"] == "published")
        )

    return is_so


def _observed(operator: Operator, path: str, name: str) -> bool:
    clients = operator.every(f"{path}/clients")
    return any(c["name"] == name and c["last_seen_at"] != c["enrolled_at"] for c in clients)


def _wait(agents: _Agents, condition: Callable[[], bool]) -> None:
    began = time.monotonic()
    while not condition():
        agents.check()
        if time.monotonic() - began > _GIVE_UP_SECONDS:
            raise DemoFailed(f"nothing moved for {_GIVE_UP_SECONDS:.0f} s")
        time.sleep(0.3)


def _result(operator: Operator, federation: str) -> FederatedResult:
    path = f"/v1/federations/{federation}"
    names = {client["client_id"]: client["name"] for client in operator.every(f"{path}/clients")}
    numbers = sorted(r["round"] for r in operator.every(f"{path}/rounds") if r["state"] == "published")
    rounds = [operator.get(f"{path}/rounds/{number}") for number in numbers]
    result = FederatedResult(
        federation,
        rounds,
        operator.get(f"{path}/rounds/{numbers[-1]}/relevance"),
        operator.get(f"{path}/alignments")["items"],
        names,
    )
    for silo in SILOS:
        rows = [c for r in rounds for c in r["clients"] if names[c["client_id"]] == silo.name]
        result.by_silo[silo.name] = [c for c in rows if c["scores"]]
        expected = len(numbers) - (JOINS_AFTER if silo.late else 0)
        if len(result.by_silo[silo.name]) != expected:
            raise DemoFailed(f"{silo.name} missed a round, so methods cannot be compared; run it again")
        if result.by_silo[silo.name][-1]["scores"]["final"] is None:
            raise DemoFailed(
                f"the final weights of {silo.name} were not scored: see its agent.log; run it again"
            )
    return result
