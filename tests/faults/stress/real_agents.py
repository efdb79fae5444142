"""Real agents, training the demo's silos, while coordinators are killed and frozen under them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from schemas.wire.digests import digest_of
from tests.faults.stress.front import front
from tests.faults.stress.stored import Published, published_in, values_of
from tests.scene.agent_processes import AgentProcess, prepare_agent
from tests.scene.coordinator import ADMIN_TOKEN
from tests.scene.replica_processes import Coordinator
from tests.scene.waiting import wait_until

SILOS = {"aster": "S", "birch": "S", "cedar": "L", "delta": "L", "elder": "S", "fjord": "S"}
LEASE_SECONDS = 2.0
_PATIENCE_SECONDS = 900.0
"""For six agents that train on two cores, beside whatever else runs there."""


@dataclass
class Federation:
    """What an operator sees of one federation."""

    admin: httpx.Client
    federation_id: str

    def round(self, number: int) -> dict[str, Any]:
        """Look at a round; {} while there is none, or nobody answers."""
        try:
            answer = self.admin.get(f"/v1/federations/{self.federation_id}/rounds/{number}")
        except httpx.TransportError:
            return {}
        return dict(answer.json()) if answer.is_success else {}

    def is_there(self, number: int, arrived: int) -> bool:
        """Whether so many updates of a round have arrived, or it is over."""
        view = self.round(number)
        return bool(view) and (view["counts"]["arrived"] >= arrived or view["state"] == "published")

    def client(self, number: int, name: str) -> str:
        """How a client's part in a round stands."""
        clients = self.round(number).get("clients", [])
        return next((str(client["state"]) for client in clients if client["name"] == name), "")


@contextmanager
def federation(
    url: str, folder: Path, names: Sequence[str], lines: Mapping[str, str] | None = None, **rounds: Any
) -> Iterator[tuple[Federation, list[AgentProcess]]]:
    """Create a federation of the demo's silos and start their agents, who enrol in the order of names.

    `lines` are other addresses of the coordinator for some of them.
    """
    plan = {
        "name": "demo",
        "strategy": {"name": "fedmosaic"},
        "adapter": {"same_architecture_rank": 8},
        "rounds": {"total": 3, "min_clients": len(names), "collect_seconds": 600, **rounds},
        "training": {"steps": 10, "max_length": 64, "learning_rate": 0.01},
        "signature": {"probe_examples": 12},
    }
    headers = {"Authorization": f"Bearer {ADMIN_TOKEN}"}
    with httpx.Client(base_url=url, headers=headers, timeout=30, verify=False) as admin:
        federation_id = admin.post("/v1/federations", json=plan).json()["id"]
        agents = []
        for name in names:
            path = f"/v1/federations/{federation_id}/enrolment-tokens"
            token = admin.post(path, json={"client_name": name}).json()["token"]
            agent = prepare_agent(folder, name, (lines or {}).get(name, url), token, model=SILOS[name])
            agents.append(agent)
            agent.start()
            # Ids follow enrolment, and sums follow ids: in one order they come out the same to the last bit.
            wait_until(
                lambda: len(_members(admin, federation_id)) == len(agents), event=f"{name}'s enrolment"
            )
        assert admin.post(f"/v1/federations/{federation_id}/start").is_success
        try:
            yield Federation(admin, federation_id), agents
        finally:
            for agent in agents:
                if agent.process is not None and agent.process.poll() is None:
                    agent.kill()


def undisturbed(database_url: str, folder: Path) -> Published:
    """Run the federation on one coordinator; return what was published."""
    coordinator = Coordinator(database_url, folder / "log")
    coordinator.start()
    try:
        with federation(coordinator.url, folder, list(SILOS)) as (_, agents):
            return _in_the_end(database_url, agents)
    finally:
        coordinator.kill()


def on_two_replicas(database_url: str, folder: Path) -> Published:
    """The same behind one address of two replicas: one is killed, and the other freezes with the lease.

    Who is left alone aggregates the first round, and freezes amid that until the other has published it.
    """
    lease = {"TESSERA_LEASE_SECONDS": str(LEASE_SECONDS), "TESSERA_PUBLIC_NAMES": "127.0.0.1"}
    killed, frozen = (Coordinator(database_url, folder / f"log{i}", **lease) for i in (0, 1))
    killed.start()
    frozen.start("block-staged", freeze=True)
    try:
        with (
            front([killed.port, frozen.port]) as line,
            federation(line.url, folder, list(SILOS)) as (watched, agents),
        ):
            wait_until(lambda: watched.is_there(1, 2), event="two updates of round 1")
            killed.kill()
            wait_until(frozen.is_frozen, event="the aggregation of round 1")
            killed.start()
            wait_until(
                lambda: killed.count_logged("round-published"), event="round 1 of who has taken it over"
            )
            frozen.thaw()
            wait_until(
                lambda: frozen.count_logged("aggregation-overtaken"), event="who was frozen to find so"
            )
            wait_until(lambda: watched.is_there(2, 2), event="two updates of round 2")
            frozen.kill()
            frozen.start()
            return _in_the_end(database_url, agents)
    finally:
        killed.kill()
        frozen.kill()
        assert killed.errors + frozen.errors == []


def cut_off(database_url: str, folder: Path) -> dict[str, str]:
    """Restart the coordinator in mid-round, and cut an agent's line for longer than a round.

    Gives how its part stood in the rounds, by number, and what it said.
    """
    coordinator = Coordinator(database_url, folder / "log")
    coordinator.start()
    names = list(SILOS)[:3]
    plan = {"quorum": 2, "collect_seconds": 25}  # no round begins to collect without all three
    try:
        with (
            front([coordinator.port]) as line,
            federation(coordinator.url, folder, names, {names[0]: line.url}, **plan) as (watched, agents),
        ):
            wait_until(lambda: watched.is_there(1, 1), event="an update of round 1")
            coordinator.kill()
            coordinator.start()
            lost = agents[0]
            wait_until(lambda: watched.client(2, lost.name) == "joined", event="round 2")
            line.cut()
            wait_until(lambda: watched.round(2).get("state") == "published", event="round 2 without it")
            line.mend()
            for agent in agents:
                agent.wait(_PATIENCE_SECONDS)
            standing = {str(number): watched.client(number, lost.name) for number in (1, 2, 3)}
            return standing | {"log": " ".join(lost.log.split())}  # it comes in lines of 80 characters
    finally:
        coordinator.kill()
        assert coordinator.errors == []


def _in_the_end(database_url: str, agents: Sequence[AgentProcess]) -> Published:
    """Wait for the end; return what was published, of which everybody has kept the last."""
    for agent in agents:
        agent.wait(_PATIENCE_SECONDS)
    weights = published_in(database_url)
    last = max(number for _, number in weights)
    for agent in agents:
        file = next((agent.folder / "state").glob("*/final_weights.safetensors"))
        assert digest_of(values_of(file.read_bytes())) == weights[agent.name, last]
    return weights


def _members(admin: httpx.Client, federation_id: str) -> list[Any]:
    members: list[Any] = admin.get(f"/v1/federations/{federation_id}/clients").json()["items"]
    return members
