"""Clients with basis vectors as updates: the served weights show how often an update was counted."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import cycle
from typing import Any

import httpx
import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from numpy.typing import NDArray

from client_agent.transport.request_signing import SignedRequests
from schemas.identity.keys import name_of
from schemas.maths.adapter import Layout
from schemas.wire.digests import digest_of
from tests.faults.stress.stored import check_stored
from tests.scene.coordinator import ADMIN_TOKEN, Silo, enrolment, slug
from tests.scene.rounds import tensors_of, update_body, upload_headers, url

PATIENCE_SECONDS = 120.0


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

    def basis(self, number: int, index: int) -> dict[str, NDArray[np.float32]]:
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


class Agent(threading.Thread):
    """Takes part until the federation is finished, whatever happens to the coordinators; asks any of them."""

    def __init__(
        self, trial: Trial, silo: Silo, index: int, urls: Sequence[str], go_on: threading.Event
    ) -> None:
        super().__init__(name=f"c{index}", daemon=True)
        self.silo = silo
        self.index = index
        self.receipts: dict[int, dict[str, Any]] = {}  # by round: what acknowledged its update
        self.served: dict[int, dict[int, float]] = {}  # by round: what is not zero, by its place
        self.digests: dict[int, str] = {}
        self.last_brief: dict[str, Any] = {}
        self.fault: BaseException | None = None
        self._trial = trial
        self._urls = cycle(urls)
        self._go_on = go_on

    def run(self) -> None:
        """Until the end, or until something is wrong: then `fault` says what."""
        try:
            while not self._turn():
                time.sleep(0.02)
                self._go_on.wait()
        except BaseException as fault:
            self.fault = fault

    def _turn(self) -> bool:
        current = self._ask("GET", f"/v1/federations/{self.silo.federation_id}/rounds/current")
        if current.status_code == 204:
            return False
        assert current.status_code == 200, current.text
        brief = current.json()
        number = brief["round"]
        if brief["state"] == "finished":
            self.last_brief = brief
            self._pull(number, brief["weights"]["digest"])
            return True
        joined = self._ask("POST", url(self.silo, number, "/join"))
        if joined.status_code == 409:  # another request of ours has closed the round meanwhile
            return False
        assert joined.status_code == 200, joined.text
        base = joined.json()["weights"]["digest"]
        self._pull(number, base)
        self._deliver(number)
        return False

    def ask_again(self) -> None:
        """Ask for everything once more: there is one answer to a question, however often it is asked."""
        for number in self.receipts:
            self._deliver(number)
        for number, digest in self.digests.items():
            self._pull(number, digest)
        last = self._ask("GET", f"/v1/federations/{self.silo.federation_id}/rounds/current").json()
        assert last == self.last_brief, "the end is told differently"

    def _deliver(self, number: int) -> None:
        tensors = self._trial.basis(number, self.index)
        body = update_body(self.silo, number, self.digests[number], tensors, signature=None)
        answer = self._ask("PUT", url(self.silo, number, "/update"), body)
        assert answer.status_code in ((200,) if number in self.receipts else (200, 201)), answer.text
        receipt = answer.json()
        assert receipt["digest"] == digest_of(body)
        assert self.receipts.setdefault(number, receipt) == receipt, "another receipt for the same bytes"

    def _pull(self, number: int, digest: str) -> None:
        answer = self._ask("GET", url(self.silo, number, "/weights"))
        tensors = tensors_of(answer, self._trial.layout)
        assert digest_of(answer.content) == digest
        assert self.digests.setdefault(number, digest) == digest, "published bytes have changed"
        values = np.concatenate([tensors[name].ravel() for name in sorted(tensors)])
        self.served[number] = {int(place): float(values[place]) for place in np.flatnonzero(values)}

    def _ask(self, method: str, path: str, body: bytes | None = None) -> httpx.Response:
        headers = upload_headers(body) if body is not None else None
        return insist(
            lambda: self.silo.http.request(method, next(self._urls) + path, content=body, headers=headers)
        )


def insist(ask: Any) -> httpx.Response:
    """Ask until there is an answer: a dead coordinator is started again by somebody."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        try:
            answer: httpx.Response = ask()
            if answer.status_code < 500 and answer.status_code != 429 and not _was_seen_before(answer):
                return answer
        except httpx.TransportError:
            pass
        assert time.monotonic() < deadline, "no answer any more"
        time.sleep(random.uniform(0.02, 0.08))


def _was_seen_before(answer: httpx.Response) -> bool:
    """Whether the network was there first with a copy of our request: sign another one."""
    return answer.status_code == 401 and slug(answer) == "replayed"


@contextmanager
def taking_part(
    trial: Trial, urls: Sequence[str], go_on: threading.Event | None = None
) -> Iterator[tuple[str, list[Agent]]]:
    """Create a federation, enrol its clients, start it and them; their connections end with the block.

    While `go_on` is not set they begin nothing new.
    """
    if go_on is None:
        go_on = threading.Event()
        go_on.set()
    headers = {"Authorization": f"Bearer {ADMIN_TOKEN}"}
    with httpx.Client(base_url=urls[0], headers=headers, timeout=60, verify=False) as admin:
        made = insist(lambda: admin.post("/v1/federations", json=trial.plan))
        federation_id = str(made.json()["id"])
        silos = [enrol(admin, federation_id, f"c{index}") for index in range(trial.clients)]
        started = insist(lambda: admin.post(f"/v1/federations/{federation_id}/start"))
        assert started.status_code == 200, started.text
    agents = [Agent(trial, silo, i, urls, go_on) for i, silo in enumerate(silos)]
    for agent in agents:
        agent.start()
    try:
        yield federation_id, agents
    finally:
        for silo in silos:
            silo.http.close()


def enrol(admin: httpx.Client, federation_id: str, name: str) -> Silo:
    """Enrol a client with a new key, however often the coordinator dies meanwhile."""
    asked = {"client_name": name}
    token = insist(
        lambda: admin.post(f"/v1/federations/{federation_id}/enrolment-tokens", json=asked)
    ).json()["token"]
    key = Ed25519PrivateKey.generate()
    made = insist(lambda: admin.post("/v1/enrolments", json=enrolment(admin, token, name, key)))
    assert made.status_code in (200, 201), made.text
    once = httpx.Limits(max_keepalive_connections=0)  # a bad network treats each connection in its own way
    signing = httpx.Client(auth=SignedRequests(key), timeout=30, verify=False, limits=once)
    return Silo(made.json()["client_id"], federation_id, key, signing)


def wait_for_the_end(agents: Sequence[Agent], seconds: float = 240.0) -> None:
    """Wait for the end of all agents; raise the first fault of any."""
    deadline = time.monotonic() + seconds
    for agent in agents:
        agent.join(timeout=max(0.1, deadline - time.monotonic()))
        if agent.fault is not None:
            raise AssertionError(f"{agent.name}: {agent.fault}") from agent.fault
        assert not agent.is_alive(), f"{agent.name} has not come to an end"


def check(trial: Trial, database_url: str, federation_id: str, agents: Sequence[Agent]) -> None:
    """Compare what was acknowledged with what was counted, ask for it again, and look at what is stored."""
    every = set(range(1, trial.rounds + 1))
    for agent in agents:
        agent.ask_again()
        assert set(agent.receipts) == every
        assert set(agent.served) == {*every, trial.rounds + 1}
        for number in every:
            wanted = {trial.place(number, other.index): 1 / trial.clients for other in agents}
            assert agent.served[number + 1] == wanted
    served = {name_of(agent.silo.key): agent.digests for agent in agents}
    check_stored(database_url, federation_id, served, rounds=trial.rounds)
