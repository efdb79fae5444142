"""A coordinator killed with SIGKILL again and again: every round is published, nothing twice, nothing lost.

The oracle: every update is a basis vector of its own, so what a round served says exactly which updates it
counted, and how often.
"""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from sqlalchemy import Engine, create_engine, text

from client_agent.signed_requests import SignedRequests
from coordinator.database import Database
from schemas.wire.digests import digest_of
from schemas.wire.envelope import unpack
from schemas.wire.header import Slot
from tests.served import ADMIN_TOKEN, SIGNING_KEY, Silo, enrolment
from tests.taking_part import update_body, upload_headers, url

RANK = 400
CLIENTS = 4
ROUNDS = 5
READY_SECONDS = 60.0
ORDER = ["open", "collecting", "closing", "aggregating", "published", "abandoned"]
PLAN = {
    "name": "kills",
    "strategy": {"name": "fedavg"},
    "adapter": {"rank": RANK, "blocks": 1, "roles": ["q"]},
    "rounds": {"total": ROUNDS, "min_clients": CLIENTS, "collect_seconds": 3600, "max_staleness": 0},
}
SLOTS = {"b0.q.P": Slot((RANK, RANK)), "b0.q.Q": Slot((RANK,))}


class Process:
    """`tessera serve` on one port, killed and started again."""

    def __init__(self, database_url: str, log: Path) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self._log = log
        self._environment = os.environ | {
            "TESSERA_DATABASE_URL": database_url,
            "TESSERA_ADMIN_TOKEN": ADMIN_TOKEN,
            "TESSERA_SIGNING_KEY": SIGNING_KEY,
            "TESSERA_LEASE_SECONDS": "1",
            "TESSERA_TICK_SECONDS": "0.05",
            "TESSERA_RETRY_SECONDS": "0.1",
            "TESSERA_AGGREGATION_BLOCK_MIB": "1",
            "TESSERA_POLLS_PER_SECOND": "1000",  # these agents poll like nobody should
            "OMP_NUM_THREADS": "1",
        }
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start, and wait until it is ready."""
        command = [sys.executable, "-c", "from schemas.command import main; main()", "serve"]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [*command, "--port", str(self.port)], env=self._environment, stdout=log, stderr=log
            )
        deadline = time.monotonic() + READY_SECONDS
        while True:
            assert self._process.poll() is None, self._log.read_text()[-3000:]
            assert time.monotonic() < deadline, self._log.read_text()[-3000:]
            try:
                if httpx.get(f"{self.url}/readyz", timeout=5).status_code == 200:
                    return
            except httpx.TransportError:
                time.sleep(0.05)

    def kill(self) -> None:
        """As the kernel does when memory runs out."""
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait()
            self._process = None


class Agent(threading.Thread):
    """Takes part until the federation is finished, whatever happens to the coordinator."""

    def __init__(self, silo: Silo, index: int) -> None:
        super().__init__(daemon=True)
        self.silo = silo
        self.index = index
        self.acknowledged: set[int] = set()
        self.served: dict[int, np.ndarray[Any, np.dtype[np.float32]]] = {}
        self.fault: BaseException | None = None

    def run(self) -> None:
        try:
            while not self._turn():
                time.sleep(0.02)
        except BaseException as fault:
            self.fault = fault

    def _turn(self) -> bool:
        current = self._ask("GET", f"/v1/federations/{self.silo.federation_id}/rounds/current")
        if current.status_code == 204:
            return False
        brief = current.json()
        number = brief["round"]
        if brief["state"] == "finished":
            self._pull(number, brief["weights"]["digest"])
            return True
        base = self._ask("POST", url(self.silo, number, "/join")).json()["weights"]["digest"]
        self._pull(number, base)
        body = update_body(self.silo, number, base, _basis(number, self.index), signature=None)
        answer = self._ask("PUT", url(self.silo, number, "/update"), body)
        assert answer.status_code in (200, 201), answer.text
        assert answer.json()["digest"] == digest_of(body)
        self.acknowledged.add(number)
        return False

    def _pull(self, number: int, digest: str) -> None:
        answer = self._ask("GET", url(self.silo, number, "/weights"))
        assert answer.status_code == 200, answer.text
        assert digest_of(answer.content) == digest
        with unpack(answer.content, encoding=None, expected=SLOTS, max_bytes=2**22) as envelope:
            values = np.concatenate([envelope.read_float32(name).ravel() for name in sorted(SLOTS)])
        known = self.served.setdefault(number, values)
        assert (known == values).all(), "published bytes have changed"

    def _ask(self, method: str, path: str, body: bytes | None = None) -> httpx.Response:
        """Try until there is an answer: a dead coordinator is started again."""
        deadline = time.monotonic() + 2 * READY_SECONDS
        while True:
            try:
                headers = upload_headers(body) if body is not None else None
                answer = self.silo.http.request(method, path, content=body, headers=headers)
                if answer.status_code < 500:
                    return answer
            except httpx.TransportError:
                pass
            assert time.monotonic() < deadline, "no answer any more"
            time.sleep(0.05)


def _place(number: int, index: int) -> int:
    return number * 1000 + index


def _basis(number: int, index: int) -> dict[str, np.ndarray[Any, np.dtype[np.float32]]]:
    flat = np.zeros(RANK * RANK + RANK, np.float32)
    flat[_place(number, index)] = 1.0
    return {"b0.q.P": flat[: RANK * RANK].reshape(RANK, RANK), "b0.q.Q": flat[RANK * RANK :]}


@contextmanager
def _federation(process: Process) -> Iterator[tuple[str, list[Agent]]]:
    headers = {"Authorization": f"Bearer {ADMIN_TOKEN}"}
    with httpx.Client(base_url=process.url, headers=headers, timeout=60) as admin:
        fid = admin.post("/v1/federations", json=PLAN).json()["id"]
        silos = []
        for i in range(CLIENTS):
            token = admin.post(
                f"/v1/federations/{fid}/enrolment-tokens", json={"client_name": f"c{i}"}
            ).json()["token"]
            key = Ed25519PrivateKey.generate()
            made = admin.post("/v1/enrolments", json=enrolment(admin, token, f"c{i}", key)).json()
            http = httpx.Client(base_url=process.url, auth=SignedRequests(key), timeout=30)
            silos.append(Silo(made["client_id"], fid, key, http))
        assert admin.post(f"/v1/federations/{fid}/start").status_code == 200
    agents = [Agent(silo, i) for i, silo in enumerate(silos)]
    for agent in agents:
        agent.start()
    try:
        yield fid, agents
    finally:
        for silo in silos:
            silo.http.close()


class Watcher:
    """Looks at the rounds past the service, to kill it at the right moment."""

    def __init__(self, database_url: str) -> None:
        self._engine: Engine = create_engine(database_url)

    def round(self) -> tuple[int, str]:
        """The current round and its state."""
        with self._engine.connect() as connection:
            row = connection.execute(
                text("SELECT number, state FROM rounds ORDER BY number DESC LIMIT 1")
            ).one()
        return int(row[0]), str(row[1])

    def wait(self, number: int, state: str, agents: list[Agent]) -> tuple[int, str] | None:
        """Wait until a round is in a state or beyond; None when all agents have come to an end before."""
        while any(agent.is_alive() for agent in agents):
            seen = self.round()
            if (seen[0], ORDER.index(seen[1])) >= (number, ORDER.index(state)):
                return seen
            time.sleep(0.002)
        return None

    def close(self) -> None:
        self._engine.dispose()


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_killed_while_collecting_and_while_aggregating(database_url: str, tmp_path: Path) -> None:
    draw = random.Random(7)
    process = Process(database_url, tmp_path / "log")
    watcher = Watcher(database_url)
    killed: list[tuple[int, str]] = []
    process.start()
    try:
        with _federation(process) as (fid, agents):
            for number in range(1, ROUNDS + 1):
                for state in ("collecting", "aggregating"):
                    seen = watcher.wait(number, state, agents)
                    if seen != (number, state):
                        continue
                    time.sleep(draw.uniform(0.0, 0.02 if state == "aggregating" else 0.2))
                    killed.append((number, watcher.round()[1]))
                    process.kill()
                    process.start()
            for agent in agents:
                agent.join(timeout=240)
                assert agent.fault is None, agent.fault
                assert not agent.is_alive()
            _check(database_url, fid, agents)
    finally:
        process.kill()
        watcher.close()
    states = {state for _, state in killed}
    assert {"collecting", "aggregating"} <= states, killed


def _check(database_url: str, fid: str, agents: list[Agent]) -> None:
    """Compare what was acknowledged with what was counted."""
    for agent in agents:
        assert agent.acknowledged == set(range(1, ROUNDS + 1))
        assert set(agent.served) == set(range(1, ROUNDS + 2))
        for number in range(1, ROUNDS + 1):
            wanted = np.zeros(RANK * RANK + RANK, np.float32)
            for other in agents:
                wanted[_place(number, other.index)] = 1 / CLIENTS
            np.testing.assert_array_equal(agent.served[number + 1], wanted)
    database = Database(database_url)
    with database.read() as session:
        rounds = session.execute(
            text("SELECT number, state FROM rounds WHERE federation_id = :fid ORDER BY number"), {"fid": fid}
        )
        assert [tuple(row) for row in rounds] == [(n, "published") for n in range(1, ROUNDS + 1)]
        twice = session.execute(
            text("SELECT client_id, round_number FROM weights GROUP BY 1, 2 HAVING count(*) > 1")
        )
        assert list(twice) == []
        lost = session.execute(
            text("SELECT id FROM updates WHERE reject_reason IS NOT NULL OR round_number > :n"), {"n": ROUNDS}
        )
        assert list(lost) == []
    database.close()
