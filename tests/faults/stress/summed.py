"""Clients with summed updates: a committed total shows how often an input was counted."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from schemas.identity.keys import name_of
from schemas.maths.adapter import Layout, in_order
from schemas.messages.secure_sum import CAPABILITY, SumOutcome, SumStatus
from schemas.secure_sum.encoding import Modulus, largest_encoded
from schemas.secure_sum.segments import values_digest
from tests.faults.stress.agents import (
    PATIENCE_SECONDS,
    Insisting,
    StressAgent,
    Tensors,
    raise_faults,
    running_agents,
    start,
)
from tests.faults.stress.stored import check_sums
from tests.scene.coordinator import Silo, slug
from tests.scene.rounds import url
from tests.scene.sum_members import MASKED, UNMASK, SumClient, roster_of

_ABANDONED = "sum-out-of-range"


@dataclass(frozen=True)
class SummedTrial:
    """So many clients in so many published rounds; the first one spoils the sum of the round `spoilt`."""

    clients: int = 4
    rounds: int = 4
    rank: int = 100
    spoilt: int = 3

    @property
    def plan(self) -> dict[str, Any]:
        return {
            "name": "summed",
            "strategy": {"name": "fedavg"},
            "adapter": {"rank": self.rank, "blocks": 1, "roles": ["q"]},
            "wire": {"recipe": "dense"},
            "rounds": {"total": self.rounds, "min_clients": self.clients, "collect_seconds": 3600},
            "privacy": {"secure_sum": {"minimum": 3, "phase_seconds": 120, "scores": "own"}},
        }

    @property
    def layout(self) -> Layout:
        return {"b0.q.P": (self.rank, self.rank), "b0.q.Q": (self.rank,)}


class SummedAgent(StressAgent):
    """Sends a random input in every round's sum.

    Attributes:
        inputs: its encoded input, by round.
        outcomes: what it was told in the end, by round.
    """

    def __init__(self, trial: SummedTrial, silo: Silo, index: int, admin: Insisting) -> None:
        super().__init__(silo, index, trial.layout)
        self.inputs: dict[int, NDArray[np.int32]] = {}
        self.outcomes: dict[int, SumOutcome] = {}
        self._trial = trial
        self._spoils = index == 0
        self._admin = admin

    def take_part(self, number: int, base: str, state: Tensors) -> None:
        values = values_digest(state, in_order(self._trial.layout))
        body = {"base": base, "values": values, "format": CAPABILITY}
        ready = self.silo.http.put(url(self.silo, number, "/ready"), json=body)
        assert ready.status_code in (200, 201), ready.text
        self._sum(number, values)

    def _sum(self, number: int, values: str) -> None:
        """Take part in the session of a round, and wait for its outcome."""
        client = SumClient(self.silo, number, values=values, patience=PATIENCE_SECONDS)
        status = self._status(client, lambda status: status.terms is not None)
        assert status.terms is not None
        client.accept(status.terms, *roster_of(self._admin, self.silo.federation_id))
        assert client.input is not None
        self.inputs[number] = client.input
        for step in range(UNMASK + 1):
            if step == MASKED and self._spoils and number == self._trial.spoilt:
                client.sent[MASKED] = _spoilt(client)
            answer = client.put(step)
            if answer.status_code == 409 and slug(answer) == "phase-mismatch" and step == UNMASK:
                break  # it was accepted, its answer was lost, and the sum has been opened since
            assert answer.status_code in (200, 201), answer.text
        outcome = self._status(client, lambda status: status.outcome is not None).outcome
        assert outcome is not None
        self.outcomes[number] = outcome

    def _status(self, client: SumClient, holds: Any) -> SumStatus:
        deadline, seen = time.monotonic() + PATIENCE_SECONDS, None
        while True:
            status = client.status(seen=seen, wait=5)
            if status is not None and holds(status):
                return status
            seen = status.phase if status is not None else seen
            assert time.monotonic() < deadline, f"the sum does not go on: {status}"


def _spoilt(client: SumClient) -> bytes:
    """Return a masked vector whose first value is far from every input."""
    assert client.terms is not None
    modulus = Modulus(client.terms.modulus)
    words = modulus.unpack(client.message(MASKED)).copy()
    words[0] += 20 * largest_encoded(16)
    return modulus.pack(words)


@contextmanager
def summing(trial: SummedTrial, urls: Sequence[str]) -> Iterator[tuple[str, list[SummedAgent], Insisting]]:
    """Run the clients of a trial."""
    make = partial(SummedAgent, trial)
    with running_agents(trial.plan, trial.clients, urls, make) as running:
        yield running


def go_on_to_the_end(federation_id: str, agents: Sequence[SummedAgent], admin: Insisting) -> None:
    """Resume the federation whenever it has paused itself, until all agents have come to their end."""
    deadline = time.monotonic() + 2 * PATIENCE_SECONDS
    while any(agent.is_alive() for agent in agents):
        raise_faults(agents)
        shown = admin.get(f"/v1/federations/{federation_id}").json()
        if shown["state"] == "paused":
            assert shown["round"]["state"] == "abandoned"
            start(admin, federation_id)
        assert time.monotonic() < deadline, shown
        time.sleep(0.2)
    raise_faults(agents)


def check(trial: SummedTrial, database_url: str, federation_id: str, agents: Sequence[SummedAgent]) -> None:
    """Compare what each client was told and sent with what is stored."""
    every = range(1, trial.rounds + 2)  # one round more than are published
    everybody = sorted(agent.silo.client_id for agent in agents)
    for agent in agents:
        assert set(agent.outcomes) == set(every)
        for number, outcome in agent.outcomes.items():
            if number == trial.spoilt:
                assert (outcome.state, outcome.reason) == ("abandoned", _ABANDONED)
            else:
                assert (outcome.state, outcome.counted) == ("summed", everybody)
    totals = {
        number: np.sum([agent.inputs[number].astype(np.int64) for agent in agents], axis=0)
        for number in every
        if number != trial.spoilt
    }
    served = {name_of(agent.silo.key): agent.digests for agent in agents}
    check_sums(database_url, federation_id, served, totals)
