"""Measure how long polls take with nothing beside them, and while a round is aggregated.

    python -m benchmarks.polls [--agents 100] [--clients 32] [--mib 2] [--rounds 5] [--postgres]
    python -m benchmarks.polls --other CHECKOUT --repetitions 3

Agents of one federation ask every five seconds whether there is a round, each at a time of its own, from a
process of their own; latencies are counted from sending to the whole answer. First nothing else happens. Then
clients of another federation under fedmosaic deliver round after round. The polls that begin while a round is
aggregated, and those that begin while updates arrive, are counted apart. `--other` measures a checkout of
another version in turn with this one. A phase of this version without polls, or with refused ones, is an
error.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import datetime
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from rich.console import Console

from benchmarks import figures
from benchmarks.load_agents import Agent, Poll, enrol, join, poll, upload
from benchmarks.memory import MIB
from benchmarks.serving import CHECKOUT, Coordinator, running
from tests.scene.postgres_server import PostgresServer

GOAL_P99_SECONDS = 0.3
_IDLE_SECONDS = 20.0
_LAYERS, _WIDTH = 8, 4096
_OPTIONS = {"change_temperature": 1.0, "min_relevance": None}
PHASES = ("idle", "delivering", "aggregating")


def main() -> None:
    """Measure, show, write."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--agents", type=int, default=100, help="how many poll")
    parser.add_argument("--every", type=float, default=5.0, help="seconds between the polls of an agent")
    parser.add_argument("--clients", type=int, default=32, help="how many deliver updates")
    parser.add_argument("--mib", type=int, default=2, help="how many MiB an update has")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--repetitions", type=int, default=1)
    parser.add_argument("--postgres", action="store_true", help="PostgreSQL instead of an SQLite file")
    parser.add_argument("--folder", type=Path, help="where an SQLite file is, on the disk to be measured")
    parser.add_argument("--other", type=Path, help="a checkout of another version")
    parser.add_argument("--out", type=Path, default=Path("runs/benchmarks/polls.json"))
    arguments = parser.parse_args()
    checkouts = {"this": CHECKOUT}
    if arguments.other is not None:
        checkouts = {"other": arguments.other.absolute(), **checkouts}
    console = Console()
    machine = figures.machine()
    measured: list[dict[str, Any]] = []
    for _ in range(arguments.repetitions):
        for version, checkout in checkouts.items():
            with _coordinator(arguments.folder, checkout, on_postgres=arguments.postgres) as coordinator:
                polls = _measure(coordinator, arguments)
            measured.append({"version": version, **polls})
            _show(console, measured[-1:])
    figures.write(arguments.out, {"machine": machine, "measured": measured})
    _show(console, measured)
    own = [run for run in measured if run["version"] == "this"]
    if reasons := faults(own):
        raise SystemExit("no figure: " + "; ".join(reasons))
    worst = max(run["aggregating"]["p99_seconds"] for run in own)
    figures.judge(
        console,
        [figures.FigureLimit("p99 of polls while a round is aggregated, s", worst, GOAL_P99_SECONDS)],
    )
    console.print(f"figures in {arguments.out}")


@contextmanager
def _coordinator(parent: Path | None, checkout: Path, *, on_postgres: bool) -> Iterator[Coordinator]:
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=parent)))
        url = None
        if on_postgres:
            server = stack.enter_context(PostgresServer(durable=True))
            server.create("polls")
            url = server.url("polls")
        yield stack.enter_context(running(folder, url, {}, checkout=checkout))


def _measure(coordinator: Coordinator, arguments: argparse.Namespace) -> dict[str, Any]:
    waiting = coordinator.post("/v1/federations", _plan(2, 1, 1))["id"]
    pollers = enrol(coordinator, waiting, arguments.agents, layers=_LAYERS, width=_WIDTH)
    plan = _plan(arguments.clients, arguments.mib, arguments.rounds)
    federation_id = coordinator.post("/v1/federations", plan)["id"]
    clients = enrol(coordinator, federation_id, arguments.clients, layers=_LAYERS, width=_WIDTH)
    spans: dict[str, list[tuple[float, float]]] = {phase: [] for phase in PHASES}
    with _polling(coordinator.url, pollers, arguments.every) as polls:
        time.sleep(arguments.every)
        began = time.time()
        time.sleep(_IDLE_SECONDS)
        spans["idle"].append((began, time.time()))
        coordinator.post(f"/v1/federations/{federation_id}/start")
        for number in range(1, arguments.rounds + 1):
            bodies = asyncio.run(join(coordinator.url, clients, number, with_signatures=True))
            began = time.time()
            asyncio.run(upload(coordinator.url, clients, bodies, number))
            spans["delivering"].append((began, time.time()))
            spans["aggregating"].append(_aggregation(coordinator, federation_id, number))
    return {phase: latencies(polls, phase_spans) for phase, phase_spans in spans.items()}


def _aggregation(coordinator: Coordinator, federation_id: str, number: int) -> tuple[float, float]:
    """Wait until a round is published; return when its aggregation began and ended."""
    while True:
        view = coordinator.get(f"/v1/federations/{federation_id}/rounds/{number}")
        if view["state"] == "published":
            seconds = view["seconds"]
            end = datetime.fromisoformat(view["opened_at"]).timestamp() + sum(seconds.values())
            return end - seconds["aggregating"], end
        time.sleep(0.2)


def latencies(polls: Iterable[Poll], spans: list[tuple[float, float]]) -> dict[str, Any]:
    """Return the count, the refusals and the latencies in seconds of the polls that began in the spans."""
    within = [
        item for item in polls if not item.is_first and any(begin <= item.began < end for begin, end in spans)
    ]
    seconds = [item.seconds for item in within]
    p50, p99 = np.percentile(seconds, [50, 99]) if seconds else (float("nan"), float("nan"))
    return {
        "polls": len(within),
        "refused": sum(item.is_refused for item in within),
        "phase_seconds": sum(end - begin for begin, end in spans),
        "p50_seconds": float(p50),
        "p99_seconds": float(p99),
        "slowest_seconds": max(seconds, default=float("nan")),
    }


def faults(runs: Iterable[dict[str, Any]]) -> list[str]:
    """Return why latencies of runs say nothing: a phase has no polls, or refusals, which come fast."""
    reasons = []
    for run in runs:
        for phase in PHASES:
            polls, refused = run[phase]["polls"], run[phase]["refused"]
            if not polls:
                reasons.append(f"no polls while {phase}")
            elif refused:
                reasons.append(f"{refused} of {polls} polls refused while {phase}")
    return reasons


@contextmanager
def _polling(url: str, agents: list[Agent], every: float) -> Iterator[list[Poll]]:
    """Poll from another process until the block ends; then the list has the polls.

    Raises:
        SystemExit: the process died.
    """
    context = multiprocessing.get_context("spawn")
    stop = context.Event()
    receiving, sending = context.Pipe(duplex=False)
    raw = [(agent.client_id, agent.federation, agent.key.private_bytes_raw()) for agent in agents]
    process = context.Process(target=_poll_all, args=(url, raw, every, stop, sending), daemon=True)
    process.start()
    sending.close()  # so that the end of the process is the end of the pipe
    polls: list[Poll] = []
    try:
        yield polls
        stop.set()
        try:
            polls += receiving.recv()
        except EOFError as error:
            process.join()
            raise SystemExit(f"the process that polls died with status {process.exitcode}") from error
        process.join()
    finally:
        process.kill()


def _poll_all(
    url: str, raw: list[tuple[str, str, bytes]], every: float, stop: Event, sending: Connection
) -> None:
    agents = [
        Agent(client, federation, Ed25519PrivateKey.from_private_bytes(key), {})
        for client, federation, key in raw
    ]
    sending.send(asyncio.run(poll(url, agents, every=every, is_over=stop.is_set)))


def _plan(clients: int, mib: int, rounds: int) -> dict[str, Any]:
    """Ordinary LoRA on q in 8 layers of width 4096: A and B of rank 4 have one MiB."""
    return {
        "name": "polls",
        "strategy": {"name": "fedmosaic", "options": _OPTIONS},
        "signature": {"dim": clients},
        "adapter": {"kind": "lora", "rank": mib * MIB // (4 * 2 * _WIDTH * _LAYERS), "roles": ["q"]},
        "rounds": {"total": rounds, "min_clients": clients},
        "limits": {"max_update_bytes": (mib + 1) * MIB, "max_norm": 1e9},
        "wire": {"compression": "none"},
    }


def _show(console: Console, measured: list[dict[str, Any]]) -> None:
    columns = ("version", "phase", "polls", "refused", "phase s", "p50 s", "p99 s", "slowest s", "p99 / idle")
    rows = [
        (
            run["version"],
            phase,
            run[phase]["polls"],
            run[phase]["refused"],
            run[phase]["phase_seconds"],
            run[phase]["p50_seconds"],
            run[phase]["p99_seconds"],
            run[phase]["slowest_seconds"],
            run[phase]["p99_seconds"] / run["idle"]["p99_seconds"],
        )
        for run in measured
        for phase in PHASES
    ]
    figures.show(console, "polls", columns, rows)


if __name__ == "__main__":
    main()
