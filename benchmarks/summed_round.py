"""Measure a round with a secure sum over HTTP, with real cryptography, from the last `ready` to the total.

    python -m benchmarks.summed_round [--members 100] [--layers 16] [--processes 2] [--postgres]

The coordinator is a process of its own, on an SQLite file or on a PostgreSQL server that writes durably; the
members are spread over a few processes, each of which plays its members one after the other, step by step, as
the agent's own code does. A layer has 65,536 values, LoRA of rank 8 on q with width 4096: 16 layers are about
a million. Seconds per phase are those between the times that the coordinator stored; `ready` is the time in
which all members join and become ready. The goal at 100 members and a million values: 25 s for all phases on
two cores. Every attempt has a coordinator of its own, and checks that the total is exact.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from datetime import datetime
from itertools import pairwise
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import httpx
import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from numpy.typing import NDArray
from rich.console import Console
from sqlalchemy import select

from benchmarks import figures
from benchmarks.load_agents import enrol
from benchmarks.serving import Coordinator, running
from client_agent.transport.request_signing import SignedRequests
from coordinator.db.engine import Database
from coordinator.db.tables.secure_sum import SumSessionRow
from coordinator.rounds.base_weights import Zeros
from coordinator.storage import payloads
from schemas.identity.documents import hash_of
from schemas.maths.adapter import size
from schemas.messages.secure_sum import CAPABILITY
from tests.scene.coordinator import SIGNING_KEY, Silo
from tests.scene.postgres_server import PostgresServer
from tests.scene.sum_members import KEYS, MASKED, UNMASK, SumClient, make_ready

GOAL_SECONDS = 25.0
PHASES = ("keys", "shares", "masked", "confirm", "unmask")
_WIDTH, _RANK, _PATIENCE_SECONDS = 4096, 8, 600.0


@dataclass(frozen=True, slots=True)
class Roster:
    """The roster by which members check the terms: the identity keys, and the newest link."""

    keys: dict[str, str]
    version: int
    link: str


@dataclass(frozen=True, slots=True)
class MemberSetup:
    """A client as it is passed to a process: its id, the seed of its key, the digest of what it is served."""

    client_id: str
    federation: str
    seed: bytes
    values: str


@dataclass(frozen=True, slots=True)
class MemberTotals:
    """Totals over the members of a process: bytes sent, processor seconds, and the sum of their inputs."""

    bytes_up: int
    cpu_seconds: float
    total: NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class RoundCost:
    """One attempt: seconds of each phase, of the total, and processor seconds on both sides."""

    members: int
    values: int
    ready_seconds: float
    phases: dict[str, float]
    opening_seconds: float
    sum_seconds: float
    bytes_up: int
    member_cpu_seconds: float
    coordinator_cpu_seconds: float
    coordinator_peak_mib: float


def main() -> None:
    """Measure and report."""
    parser = argparse.ArgumentParser(description="Measure a round with a secure sum over HTTP.")
    parser.add_argument("--members", type=int, default=100)
    parser.add_argument("--layers", type=int, default=16, help="65,536 values each")
    parser.add_argument("--processes", type=int, default=2, help="that the members are spread over")
    parser.add_argument("--attempts", type=int, default=2)
    parser.add_argument("--postgres", action="store_true", help="instead of an SQLite file")
    parser.add_argument("--folder", type=Path, help="where the SQLite file is, on the disk to be measured")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    console, costs, machine = Console(), [], figures.machine()
    for attempt in range(arguments.attempts):
        with console.status(f"attempt {attempt + 1}"):
            costs.append(
                round_cost(
                    arguments.members,
                    arguments.layers,
                    arguments.processes,
                    folder=arguments.folder,
                    postgres=arguments.postgres,
                )
            )
        _show(console, costs[-1])
    if arguments.out is not None:
        figures.write(arguments.out, {"machine": machine, "costs": [asdict(cost) for cost in costs]})


def round_cost(
    members: int, layers: int, processes: int, *, folder: Path | None = None, postgres: bool = False
) -> RoundCost:
    """Play one round; the coordinator is stopped afterwards.

    Raises:
        AssertionError: the total is not the exact sum of the inputs.
    """
    with ExitStack() as stack:
        place = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=folder)))
        url = f"sqlite:///{place / 'tessera.db'}"
        if postgres:
            server = stack.enter_context(PostgresServer(durable=True))
            server.create("sums")
            url = server.url("sums")
        settings = {"TESSERA_SIGNING_KEY": SIGNING_KEY}
        coordinator = stack.enter_context(running(place, url if postgres else None, settings))
        return _play_round(coordinator, url, members, layers, processes)


def _play_round(
    coordinator: Coordinator, database_url: str, members: int, layers: int, processes: int
) -> RoundCost:
    plan = {
        "name": "summed",
        "strategy": {"name": "fedavg"},
        "adapter": {"kind": "lora", "roles": ["q"], "rank": _RANK, "blocks": 1},
        "rounds": {"total": 1, "min_clients": members},
        "privacy": {"secure_sum": {"minimum": min(5, members), "phase_seconds": int(_PATIENCE_SECONDS)}},
    }
    federation_id = coordinator.post("/v1/federations", plan)["id"]
    agents = enrol(
        coordinator, federation_id, members, layers=layers, width=_WIDTH, capabilities=(CAPABILITY,)
    )
    roster = _roster(coordinator, federation_id)
    coordinator.post(f"/v1/federations/{federation_id}/start")
    values = Zeros(b"", 4 * size(agents[0].layout)).digest
    enrolled = [
        MemberSetup(agent.client_id, federation_id, agent.key.private_bytes_raw(), values) for agent in agents
    ]
    shares = [enrolled[place::processes] for place in range(processes)]
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        list(pool.map(len, shares))  # the processes exist before the clock starts
        began = time.monotonic()
        list(pool.map(_get_ready, [coordinator.url] * processes, shares))
        ready_seconds, before = time.monotonic() - began, coordinator.cpu_seconds()
        played = list(pool.map(_play, [coordinator.url] * processes, shares, [roster] * processes))
    total, times = _stored(database_url)
    if not np.array_equal(total, np.sum([part.total for part in played], axis=0)):
        raise AssertionError("the total is not exact")
    moments = [times["opened"], *(times[phase] for phase in PHASES), times["ended"]]
    spans = [(end - begin).total_seconds() for begin, end in pairwise(moments)]
    return RoundCost(
        members=members,
        values=len(total),
        ready_seconds=ready_seconds,
        phases=dict(zip(PHASES, spans, strict=False)),
        opening_seconds=spans[-1],
        sum_seconds=(moments[-1] - moments[0]).total_seconds(),
        bytes_up=sum(part.bytes_up for part in played) // members,
        member_cpu_seconds=sum(part.cpu_seconds for part in played) / members,
        coordinator_cpu_seconds=coordinator.cpu_seconds() - before,
        coordinator_peak_mib=coordinator.peak_rss_mib(),
    )


def _roster(coordinator: Coordinator, federation_id: str) -> Roster:
    entries = coordinator.get(f"/v1/federations/{federation_id}/roster?limit=500")["items"]
    keys = {entry["client"]: entry["public_key"] for entry in entries}
    return Roster(keys, entries[-1]["version"], hash_of(entries[-1]))


def _clients(url: str, enrolled: Sequence[MemberSetup]) -> list[SumClient]:
    clients = []
    for agent in enrolled:
        key = Ed25519PrivateKey.from_private_bytes(agent.seed)
        silo = Silo(agent.client_id, agent.federation, key, _http(url, key))
        clients.append(SumClient(silo, round=1, values=agent.values, patience=_PATIENCE_SECONDS))
    return clients


def _http(url: str, key: Ed25519PrivateKey) -> httpx.Client:
    return httpx.Client(base_url=url, auth=SignedRequests(key), timeout=120, trust_env=False)


def _get_ready(url: str, enrolled: Sequence[MemberSetup]) -> None:
    for client in _clients(url, enrolled):
        with client.silo.http:
            make_ready(client.silo, values=client.values)


def _play(url: str, enrolled: Sequence[MemberSetup], roster: Roster) -> MemberTotals:
    """Take part with some members, each step with all of them before the next."""
    clients, sent_bytes, began = _clients(url, enrolled), 0, time.process_time()
    for client in clients:
        client.begin(roster.keys, roster.version, roster.link)
    for step in range(KEYS, UNMASK + 1):
        for client in clients:
            answer = client.put(step)
            if answer.status_code not in (200, 201):
                raise AssertionError(f"step {step}: {answer.status_code} {answer.text}")
            sent_bytes += len(client.sent[step])
            if step == MASKED:
                client.sent[step] = b""
    inputs = [client.input.astype(np.int64) for client in clients if client.input is not None]
    for client in clients:
        client.silo.http.close()
    return MemberTotals(sent_bytes, time.process_time() - began, np.sum(inputs, axis=0))


def _stored(database_url: str) -> tuple[NDArray[np.int64], dict[str, datetime]]:
    """Wait for the total; return it, and when the session opened, each phase closed, and it ended."""
    database = Database(database_url)
    try:
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while True:
            with database.read() as session:
                row = session.scalars(select(SumSessionRow)).one()
                if row.total_payload_id is not None and row.ended_at is not None:
                    values = sum(segment["values"] for segment in row.terms["segments"])
                    octets = payloads.read(session, row.total_payload_id, 0, 4 * values)
                    times = {phase: datetime.fromisoformat(row.closed[phase]["at"]) for phase in PHASES}
                    times |= {"opened": row.opened_at, "ended": row.ended_at}
                    return np.frombuffer(octets, "<i4").astype(np.int64), times
            if time.monotonic() > deadline:
                raise AssertionError("there is no total")
            time.sleep(0.05)
    finally:
        database.close()


def _show(console: Console, cost: RoundCost) -> None:
    columns = ("", *PHASES, "opening", "all phases", "goal")
    row: list[Any] = ["seconds", *cost.phases.values(), cost.opening_seconds, cost.sum_seconds, GOAL_SECONDS]
    figures.show(console, f"{cost.members} members, {cost.values} values", columns, [row])
    console.print(
        f"ready {cost.ready_seconds:.1f} s; a member: {cost.bytes_up} bytes up,"
        f" {cost.member_cpu_seconds:.3f} processor s; the coordinator: {cost.coordinator_cpu_seconds:.1f}"
        f" processor s, at most {cost.coordinator_peak_mib:.0f} MiB",
        highlight=False,
    )


if __name__ == "__main__":
    main()
