"""Clients with basis vectors as updates: the served weights show how often an update was counted."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from schemas.identity.keys import name_of
from schemas.maths.adapter import Layout
from schemas.wire.digests import digest_of
from tests.faults.stress.agents import Insisting, StressAgent, Tensors, running_agents
from tests.faults.stress.stored import check_stored
from tests.scene.coordinator import Silo
from tests.scene.rounds import update_body, upload_headers, url


@dataclass(frozen=True)
class Trial:
    """So many clients take part in so many rounds; the adapter has rank * (rank + 1) values."""

    clients: int = 4
    rounds: int = 5
    rank: int = 400

    @property
    def plan(self) -> dict[str, Any]:
        """A federation whose rounds wait for everybody, and forget last round's updates."""
        return {
            "name": "one-hot",
            "strategy": {"name": "fedavg"},
            "adapter": {"rank": self.rank, "blocks": 1, "roles": ["q"]},
            "rounds": {
                "total": self.rounds,
                "min_clients": self.clients,
                "collect_seconds": 3600,
                "max_staleness": 0,
            },
        }

    @property
    def layout(self) -> Layout:
        """The adapter's tensors."""
        return {"b0.q.P": (self.rank, self.rank), "b0.q.Q": (self.rank,)}

    def basis(self, number: int, index: int) -> Tensors:
        """The update of one client in one round: zeros and a single one, in a place of its own."""
        flat = np.zeros(self.rank * (self.rank + 1), np.float32)
        flat[self.place(number, index)] = 1.0
        return {
            "b0.q.P": flat[: self.rank**2].reshape(self.rank, self.rank),
            "b0.q.Q": flat[self.rank**2 :],
        }

    def place(self, number: int, index: int) -> int:
        """Where that one is."""
        return number * 1000 + index


class Agent(StressAgent):
    """Sends its place's basis vector in every round.

    Attributes:
        receipts: what acknowledged its update, by round.
        served: the values that are not zero, by round and place.
    """

    def __init__(self, trial: Trial, silo: Silo, index: int, go_on: threading.Event | None) -> None:
        super().__init__(silo, index, trial.layout, go_on)
        self.receipts: dict[int, dict[str, Any]] = {}
        self.served: dict[int, dict[int, float]] = {}
        self._trial = trial

    def take_part(self, number: int, base: str, state: Tensors) -> None:
        tensors = self._trial.basis(number, self.index)
        body = update_body(self.silo, number, self.digests[number], tensors, signature=None)
        answer = self.silo.http.put(
            url(self.silo, number, "/update"), content=body, headers=upload_headers(body)
        )
        assert answer.status_code in ((200,) if number in self.receipts else (200, 201)), answer.text
        receipt = answer.json()
        assert receipt["digest"] == digest_of(body)
        assert self.receipts.setdefault(number, receipt) == receipt, "another receipt for the same bytes"

    def pull(self, number: int, digest: str) -> Tensors:
        tensors = super().pull(number, digest)
        values = np.concatenate([tensors[name].ravel() for name in sorted(tensors)])
        self.served[number] = {int(place): float(values[place]) for place in np.flatnonzero(values)}
        return tensors

    def ask_again(self) -> None:
        """Ask for everything once more: there is one answer to a question, however often it is asked."""
        for number, digest in self.digests.items():
            state = self.pull(number, digest)
            if number in self.receipts:
                self.take_part(number, digest, state)
        assert self.current().json() == self.last_brief, "the end is told differently"


@contextmanager
def taking_part(
    trial: Trial, urls: Sequence[str], go_on: threading.Event | None = None
) -> Iterator[tuple[str, list[Agent]]]:
    """Run the clients of a trial; while `go_on` is not set they begin nothing new."""

    def make(silo: Silo, index: int, admin: Insisting) -> Agent:
        return Agent(trial, silo, index, go_on)

    with running_agents(trial.plan, trial.clients, urls, make) as (federation_id, agents, _):
        yield federation_id, agents


def check(trial: Trial, database_url: str, federation_id: str, agents: Sequence[Agent]) -> None:
    """Compare what was acknowledged with what was counted, ask for it again, and look at what is stored."""
    every = set(range(1, trial.rounds + 1))
    for agent in agents:
        agent.ask_again()
        assert set(agent.receipts) == every
        assert set(agent.served) == {*every, trial.rounds + 1}
        for number in every:
            shares = {trial.place(number, peer.index): 1 / trial.clients for peer in agents}
            assert agent.served[number + 1] == shares
    served = {name_of(agent.silo.key): agent.digests for agent in agents}
    check_stored(database_url, federation_id, served, rounds=trial.rounds)
