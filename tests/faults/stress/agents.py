"""Clients that take part until their federation is finished, whatever happens to its coordinators."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import cycle
from typing import Any, TypeVar

import httpx
import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from numpy.typing import NDArray

from client_agent.transport.request_signing import SignedRequests
from schemas.maths.adapter import Layout
from schemas.wire.digests import digest_of
from tests.scene.coordinator import ADMIN_TOKEN, Silo, enrolment, slug
from tests.scene.rounds import tensors_of, url

PATIENCE_SECONDS = 120.0

Tensors = dict[str, NDArray[np.float32]]


class Insisting:
    """Asks any coordinator until there is an answer, with a new signature each time."""

    def __init__(self, client: httpx.Client, urls: Sequence[str]) -> None:
        self._client = client
        self._urls = cycle(urls)

    def get(self, path: str, **request: Any) -> httpx.Response:
        return insist(lambda: self.once("GET", path, **request))

    def put(self, path: str, **request: Any) -> httpx.Response:
        return insist(lambda: self.once("PUT", path, **request))

    def post(self, path: str, **request: Any) -> httpx.Response:
        return insist(lambda: self.once("POST", path, **request))

    def once(self, method: str, path: str, **request: Any) -> httpx.Response:
        """Ask the next coordinator a single time."""
        return self._client.request(method, next(self._urls) + path, **request)

    def close(self) -> None:
        self._client.close()


def insist(ask: Callable[[], httpx.Response]) -> httpx.Response:
    """Ask until there is an answer: a dead coordinator is started again by another thread."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        try:
            answer = ask()
            if answer.status_code < 500 and answer.status_code != 429 and not _is_replayed(answer):
                return answer
        except httpx.TransportError:
            pass
        assert time.monotonic() < deadline, "no answer any more"
        time.sleep(random.uniform(0.02, 0.08))


def _is_replayed(answer: httpx.Response) -> bool:
    """Whether the network was there first with a copy of the request: another one is signed."""
    return answer.status_code == 401 and slug(answer) == "replayed"


class StressAgent(threading.Thread):
    """A client of one federation.

    Attributes:
        digests: the bytes that it was served, by round.
        last_brief: the answer that ended its part.
        fault: the exception that ended it before the federation did.
    """

    def __init__(self, silo: Silo, index: int, layout: Layout, go_on: threading.Event | None = None) -> None:
        """Begin no round while `go_on` is not set."""
        super().__init__(name=f"c{index}", daemon=True)
        self.silo = silo
        self.index = index
        self.digests: dict[int, str] = {}
        self.last_brief: dict[str, Any] = {}
        self.fault: BaseException | None = None
        self._layout = layout
        self._go_on = go_on

    def run(self) -> None:
        try:
            while not self._turn():
                time.sleep(0.02)
                if self._go_on is not None:
                    self._go_on.wait()
        except BaseException as fault:
            self.fault = fault

    def take_part(self, number: int, base: str, state: Tensors) -> None:
        """Do a client's part in a round that it has joined with the weights `state` of digest `base`."""
        raise NotImplementedError

    def pull(self, number: int, digest: str) -> Tensors:
        """Return the weights of a round, whose bytes are always the same."""
        answer = self.silo.http.get(url(self.silo, number, "/weights"))
        tensors = tensors_of(answer, self._layout)
        assert digest_of(answer.content) == digest
        assert self.digests.setdefault(number, digest) == digest, "published bytes have changed"
        return tensors

    def current(self) -> httpx.Response:
        return self.silo.http.get(f"/v1/federations/{self.silo.federation_id}/rounds/current")

    def _turn(self) -> bool:
        current = self.current()
        if current.status_code == 204:
            return False
        assert current.status_code == 200, current.text
        brief = current.json()
        number = brief["round"]
        if brief["state"] == "finished":
            self.last_brief = brief
            self.pull(number, brief["weights"]["digest"])
            return True
        joined = self.silo.http.post(url(self.silo, number, "/join"))
        if joined.status_code == 409:  # another client's request has closed the round meanwhile
            return False
        assert joined.status_code == 200, joined.text
        base = joined.json()["weights"]["digest"]
        self.take_part(number, base, self.pull(number, base))
        return False


SomeAgent = TypeVar("SomeAgent", bound=StressAgent)


@contextmanager
def running_agents(
    plan: Mapping[str, Any],
    clients: int,
    urls: Sequence[str],
    make: Callable[[Silo, int, Insisting], SomeAgent],
) -> Iterator[tuple[str, list[SomeAgent], Insisting]]:
    """Create a federation, enrol its clients, start it and them; their connections end with the block.

    `make` returns the agent of a silo, of its index and of the operator's connection.
    """
    headers = {"Authorization": f"Bearer {ADMIN_TOKEN}"}
    with httpx.Client(headers=headers, timeout=60, verify=False) as people:
        admin = Insisting(people, urls)
        created = admin.post("/v1/federations", json=plan)
        assert created.status_code == 201, created.text
        federation_id = str(created.json()["id"])
        silos = [enrol(admin, federation_id, f"c{index}", urls) for index in range(clients)]
        agents = [make(silo, index, admin) for index, silo in enumerate(silos)]
        start(admin, federation_id)
        for agent in agents:
            agent.start()
        try:
            yield federation_id, agents, admin
        finally:
            for silo in silos:
                silo.http.close()


def start(admin: Insisting, federation_id: str) -> None:
    started = admin.post(f"/v1/federations/{federation_id}/start")
    assert started.status_code == 200, started.text


def enrol(admin: Any, federation_id: str, name: str, urls: Sequence[str]) -> Silo:
    """Enrol a client with a new key, however often the coordinator dies meanwhile."""
    asked = {"client_name": name}
    token = admin.post(f"/v1/federations/{federation_id}/enrolment-tokens", json=asked).json()["token"]
    key = Ed25519PrivateKey.generate()
    enrolled = insist(  # each try has a nonce of its own
        lambda: admin.once("POST", "/v1/enrolments", json=enrolment(admin, token, name, key))
    )
    assert enrolled.status_code in (200, 201), enrolled.text
    once = httpx.Limits(max_keepalive_connections=0)  # a bad network treats each connection in its own way
    signing = httpx.Client(auth=SignedRequests(key), timeout=30, verify=False, limits=once)
    insisting: Any = Insisting(signing, urls)
    return Silo(enrolled.json()["client_id"], federation_id, key, insisting)


def raise_faults(agents: Sequence[StressAgent]) -> None:
    """Raise the first fault of any agent."""
    for agent in agents:
        if agent.fault is not None:
            raise AssertionError(f"{agent.name}: {agent.fault}") from agent.fault


def wait_for_the_end(agents: Sequence[StressAgent], seconds: float = 240.0) -> None:
    """Wait for the end of all agents; raise the first fault of any."""
    deadline = time.monotonic() + seconds
    for agent in agents:
        agent.join(timeout=max(0.1, deadline - time.monotonic()))
        raise_faults([agent])
        assert not agent.is_alive(), f"{agent.name} has not come to an end"
