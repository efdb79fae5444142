"""Real agents, training the demo's silos, while coordinators are killed and frozen under them."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import safetensors.numpy

from tests.integration.agents import AgentProcess, prepare_agent, wait_until
from tests.served import ADMIN_TOKEN
from tests.torture.front import front
from tests.torture.processes import Coordinator

SILOS = {"aster": "S", "birch": "S", "cedar": "L", "delta": "L", "elder": "S", "fjord": "S"}
LEASE_SECONDS = 2.0
_FROZEN_SECONDS = 3 * LEASE_SECONDS

Tensors = dict[str, Any]


@dataclass
class Federation:
    """What an operator sees of one federation."""

    admin: httpx.Client
    fid: str

    def round(self, number: int) -> dict[str, Any]:
        """Look at a round; {} while there is none, or nobody answers."""
        try:
            answer = self.admin.get(f"/v1/federations/{self.fid}/rounds/{number}")
        except httpx.TransportError:
            return {}
        return dict(answer.json()) if answer.is_success else {}

    def is_there(self, number: int, arrived: int) -> bool:
        """Whether so many updates of a round have arrived, or it is over."""
        seen = self.round(number)
        return bool(seen) and (seen["counts"]["arrived"] >= arrived or seen["state"] == "published")

    def client(self, number: int, name: str) -> str:
        """How a client's part in a round stands."""
        clients = self.round(number).get("clients", [])
        return next((str(one["state"]) for one in clients if one["name"] == name), "")


@contextmanager
def federation(
    url: str, folder: Path, names: Sequence[str], **rounds: Any
) -> Iterator[tuple[Federation, list[AgentProcess]]]:
    """Create a federation of the demo's silos and start their agents, who enrol in the order of names."""
    plan = {
        "name": "demo",
        "strategy": {"name": "fedmosaic"},
        "adapter": {"same_architecture_rank": 8},
        "rounds": {"total": 3, "min_clients": len(names), "collect_seconds": 600, **rounds},
        "training": {"steps": 10, "max_length": 64},
        "signature": {"probe_examples": 12},
    }
    headers = {"Authorization": f"Bearer {ADMIN_TOKEN}"}
    with httpx.Client(base_url=url, headers=headers, timeout=30, verify=False) as admin:
        fid = admin.post("/v1/federations", json=plan).json()["id"]
        agents = []
        for name in names:
            path = f"/v1/federations/{fid}/enrolment-tokens"
            token = admin.post(path, json={"client_name": name}).json()["token"]
            agent = prepare_agent(folder, name, url, token, model=SILOS[name])
            agents.append(agent)
            agent.start()
            # Ids follow enrolment, and sums follow ids: in one order they come out the same to the last bit.
            wait_until(lambda: len(_members(admin, fid)) == len(agents), what=f"{name}'s enrolment")
        assert admin.post(f"/v1/federations/{fid}/start").is_success
        try:
            yield Federation(admin, fid), agents
        finally:
            for agent in agents:
                if agent.process is not None and agent.process.poll() is None:
                    agent.process.send_signal(signal.SIGCONT)
                    agent.kill()


def undisturbed(database_url: str, folder: Path) -> dict[str, Tensors]:
    """Run the federation on one coordinator; give everybody's final weights by name."""
    coordinator = Coordinator(database_url, folder / "log")
    coordinator.start()
    try:
        with federation(coordinator.url, folder, list(SILOS)) as (_, agents):
            return _final(agents)
    finally:
        coordinator.kill()


def on_two_replicas(database_url: str, folder: Path) -> dict[str, Tensors]:
    """The same behind one address of two replicas: one is killed, then the other frozen, meanwhile."""
    lease = {"TESSERA_LEASE_SECONDS": str(LEASE_SECONDS), "TESSERA_PUBLIC_NAMES": "127.0.0.1"}
    killed, frozen = (Coordinator(database_url, folder / f"log{i}", **lease) for i in (0, 1))
    killed.start()
    frozen.start()
    try:
        with (
            front([killed.port, frozen.port]) as url,
            federation(url, folder, list(SILOS)) as (watched, agents),
        ):
            wait_until(lambda: watched.is_there(1, 2), what="two updates of round 1")
            killed.kill()
            wait_until(lambda: watched.is_there(1, 4), what="four updates of round 1")
            killed.start()
            wait_until(lambda: watched.is_there(2, 2), what="two updates of round 2")
            frozen.freeze()
            time.sleep(_FROZEN_SECONDS)
            frozen.thaw()
            return _final(agents)
    finally:
        killed.kill()
        frozen.kill()


def cut_off(database_url: str, folder: Path) -> dict[str, str]:
    """Restart the coordinator in mid-round, and cut an agent off for longer than a round.

    Gives how its part stood in the rounds, by number, and what it said.
    """
    coordinator = Coordinator(database_url, folder / "log")
    coordinator.start()
    names = list(SILOS)[:3]
    plan = {"min_clients": 2, "collect_seconds": 25, "total": 4}
    try:
        with federation(coordinator.url, folder, names, **plan) as (watched, agents):
            wait_until(lambda: watched.is_there(1, 1), what="an update of round 1")
            coordinator.kill()
            coordinator.start()
            lost = agents[0]
            assert lost.process is not None
            wait_until(lambda: watched.client(2, lost.name) == "joined", what="round 2")
            lost.process.send_signal(signal.SIGSTOP)
            wait_until(lambda: watched.round(2).get("state") == "published", what="round 2 without it")
            lost.process.send_signal(signal.SIGCONT)
            for agent in agents:
                agent.wait()
            told = {str(number): watched.client(number, lost.name) for number in (1, 2, 3, 4)}
            return told | {"log": lost.log}
    finally:
        coordinator.kill()


def same(one: dict[str, Tensors], other: dict[str, Tensors]) -> bool:
    """Whether everybody has the same weights, to the last bit."""
    return one.keys() == other.keys() and all(
        one[name].keys() == other[name].keys()
        and all(one[name][tensor].tobytes() == other[name][tensor].tobytes() for tensor in one[name])
        for name in one
    )


def _final(agents: Sequence[AgentProcess]) -> dict[str, Tensors]:
    found = {}
    for agent in agents:
        agent.wait()
        file = next((agent.folder / "state").glob("*/final_weights.safetensors"))
        found[agent.name] = safetensors.numpy.load_file(file)
    return found


def _members(admin: httpx.Client, fid: str) -> list[Any]:
    members: list[Any] = admin.get(f"/v1/federations/{fid}/clients").json()["items"]
    return members
