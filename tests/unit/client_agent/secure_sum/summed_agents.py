"""Agents of a federation with secure sums, in this process: they share one silo, and train in turn."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import httpx
import numpy as np
from numpy.typing import NDArray

from client_agent.errors import Stopped
from client_agent.identity.membership import enrol, read_key
from client_agent.rounds.participant import Participant
from client_agent.rounds.steps import resume, take_part
from client_agent.rounds.sum_input import SumInput
from client_agent.rounds.training_result import TrainingResult
from client_agent.storage.round_folder import INPUT, READY, TRAINED, RoundFolder
from client_agent.training.silo import Silo
from client_agent.transport.client import CoordinatorApi
from schemas.maths.adapter import Layout, in_order
from schemas.messages.federations import FederationPlan
from schemas.messages.rounds import RoundBrief
from schemas.secure_sum.segments import segments_of
from tests.scene.coordinator import Served
from tests.scene.database import ask
from tests.scene.threads import run_at_once

PLAN: dict[str, Any] = {
    "strategy": {"name": "fedavg"},
    "adapter": {"kind": "lora", "rank": 2, "roles": ["v"]},
    "training": {"steps": 2, "max_length": 64, "learning_rate": 0.01},
}


def plan(clients: int, *, total: int = 1, quorum: int | None = None, **secure_sum: Any) -> dict[str, Any]:
    rounds = {"total": total, "min_clients": clients, "quorum": quorum or clients, "collect_seconds": 600}
    return PLAN | {"rounds": rounds, "privacy": {"secure_sum": {"minimum": 3, **secure_sum}}}


@dataclass
class Agent:
    """An enrolled agent; `stop` makes it stop at its next wait, or at its next request."""

    name: str
    participant: Participant
    stop: threading.Event = field(default_factory=threading.Event)

    @property
    def client(self) -> str:
        return self.participant.session.client_id

    def folder(self, round_number: int = 1) -> RoundFolder:
        return self.participant.workspace.rounds.open(round_number)

    def train(self) -> None:
        """Join the open round, train and report ready."""
        session = self.participant.session
        brief = session.api.current_round(session.federation_id)
        assert isinstance(brief, RoundBrief), brief
        assert take_part(self.participant, brief, until=READY)

    def sum(self) -> None:
        resume(self.participant)

    def layout(self, round_number: int = 1) -> Layout:
        adapter = TrainingResult.from_bytes(self.folder(round_number).read(TRAINED)).adapter
        return in_order({name: values.shape for name, values in adapter.items()})

    def input(self, round_number: int = 1) -> NDArray[np.int64]:
        """Return the encoded input in this agent's folder."""
        federation_plan: FederationPlan = self.participant.session.manifests.plan
        content, layout = self.folder(round_number).read(INPUT), self.layout(round_number)
        return SumInput.from_bytes(content, segments_of(federation_plan, layout)).values.astype(np.int64)


@dataclass
class Agents:
    """The agents of one federation."""

    served: Served
    federation_id: str
    agents: list[Agent]

    def start(self) -> None:
        self.served.start_federation(self.federation_id)

    def train(self) -> None:
        for agent in self.agents:
            agent.train()

    def sum(self, agents: list[Agent] | None = None) -> dict[str, BaseException]:
        """Run agents' parts in the sum at once; return the errors by name."""
        return run_at_once({agent.name: agent.sum for agent in agents or self.agents}, 240)


Transport = Callable[[str], httpx.BaseTransport | None]


@contextmanager
def agents_of(
    served: Served,
    silo: Silo,
    folder: Path,
    changed_plan: dict[str, Any],
    clients: int,
    transport: Transport = lambda name: None,
) -> Iterator[Agents]:
    """Enrol agents in a new federation."""
    federation_id = served.federation(**changed_plan)
    with ExitStack() as stack:

        def api(key: Any = None, server_key: str | None = None, **options: Any) -> CoordinatorApi:
            connection = CoordinatorApi(
                served.url, key=key, server_key=server_key, deadline_seconds=30, **options
            )
            return stack.enter_context(connection)

        agents = []
        for number in range(clients):
            name = f"silo-{number}"
            token = served.enrolment_token(federation_id, name)
            home, stop = folder / name, threading.Event()
            member = enrol(api(), home, token=token, name=name, profile=silo.profile)

            def sleep(seconds: float, stop: threading.Event = stop) -> None:
                if stop.wait(min(seconds, 0.2)):
                    raise Stopped

            connection = api(read_key(home), member.server_key, sleep=sleep, transport=transport(name))
            own = replace(silo, data=replace(silo.data, train=silo.data.train[number:]))
            participant = Participant.of(own, connection, member, home, keep_rounds=2, sleep=sleep)
            agents.append(Agent(name, participant, stop))
        yield Agents(served, federation_id, agents)


def total_of(served: Served, federation_id: str, round_number: int = 1) -> NDArray[np.int64]:
    """Read the total of a round past the service."""
    ((payload_id,),) = ask(
        served.database_url,
        "SELECT s.total_payload_id FROM sum_sessions s JOIN rounds r ON r.id = s.round_id"
        f" WHERE r.federation_id = '{federation_id}' AND r.number = {round_number}"
        " AND s.state = 'done' AND s.kind = 'sum'",
    )
    chunks = ask(
        served.database_url,
        f"SELECT data FROM payload_chunks WHERE payload_id = {payload_id} ORDER BY begin",
    )
    return np.frombuffer(b"".join(bytes(data) for (data,) in chunks), "<i4").astype(np.int64)
