"""Load a coordinator: a thousand polling agents, a thousand uploads at once, and a long time.

python -m benchmarks.load [--agents 1000] [--poll-seconds 60] [--soak-requests 20000] [--sqlite]

Agents are signed clients of one process; the coordinator is a process of its own, on a PostgreSQL server of
its own that writes durably, or on an SQLite file. `polls`: every agent asks every 5 seconds what there is to
do, each at a time of its own; latencies are counted from sending to the whole answer. `uploads`: all agents
have joined a round and send 1 MiB each at once, coming again when they are told to; seconds until the last
receipt, and, on PostgreSQL, those that the same bytes take through a server that only stores them. `soak`:
small rounds of four new clients at a time until so many requests are answered; memory, files and threads of
the server over their number. `pipelines`: anonymous connections that send requests back to back and read
nothing; the largest memory, and the slowest health probe meanwhile.
"""

from __future__ import annotations

import argparse
import asyncio
import resource
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from benchmarks import bare_store, figures
from benchmarks.load_agents import Agent, enrol, join, poll, soak, store, upload
from benchmarks.memory import MIB
from benchmarks.pipelines import pipelined
from benchmarks.serving import Coordinator, running
from tests.scene.postgres_server import PostgresServer

GOAL_POLL_P99_SECONDS = 0.150
GOAL_UPLOAD_SECONDS = 8.0
GOAL_UPLOAD_RSS_MIB = 512.0
GOAL_UPLOAD_CPU_RATIO = 2.0
"""Processor time of the coordinator / that of the bare server, for the same uploads."""

GOAL_SOAK_MIB_PER_10000 = 0.5
GOAL_PIPELINES_RSS_MIB = 250.0
GOAL_PIPELINES_PROBE_SECONDS = 1.0
POLL_EVERY_SECONDS = 5.0
PIPELINES = (1, 8, 40)
"""Numbers of connections that send without reading."""

PIPELINES_SECONDS = 30.0
_LAYERS, _WIDTH = 8, 4096
_MOST_ROUNDS = 250  # of one federation: a key may sign so many POSTs in ten minutes, and no more


def main() -> None:
    """Measure and report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--agents", type=int, default=1000)
    parser.add_argument("--poll-seconds", type=float, default=60.0, help="how long they poll")
    parser.add_argument("--soak-requests", type=int, default=20_000)
    parser.add_argument("--sqlite", action="store_true", help="an SQLite file instead of PostgreSQL")
    parser.add_argument("--folder", type=Path, help="where an SQLite file is, on the disk to be measured")
    parser.add_argument("--out", type=Path, default=Path("runs/benchmarks/load.json"))
    arguments = parser.parse_args()
    _allow_many_connections()
    console = Console()
    result: dict[str, Any] = {
        "machine": figures.machine(),
        "database": "sqlite" if arguments.sqlite else "postgresql",
        "agents": arguments.agents,
    }
    with _coordinator(arguments.folder, sqlite=arguments.sqlite) as coordinator:
        federation_id, agents = _federation(coordinator, arguments.agents, console)
        with console.status("they poll"):
            result["polls"] = _polls(coordinator, agents, arguments.poll_seconds)
        with console.status("they join and deliver"):
            result["uploads"], bodies = _uploads(coordinator, federation_id, agents)
    if not arguments.sqlite:
        with console.status("the same bytes to a server that only stores them"):
            result["bare"] = _bare(agents, bodies)
    result["pipelines"] = []
    for connections in PIPELINES:
        with _coordinator(arguments.folder, sqlite=arguments.sqlite) as coordinator:
            result["pipelines"].append(pipelined(coordinator, connections, PIPELINES_SECONDS))
    with _coordinator(arguments.folder, sqlite=arguments.sqlite) as coordinator:
        result["soak"] = _soak(coordinator, arguments.soak_requests, console)
    figures.write(arguments.out, result)
    _report(console, result)
    console.print(f"figures in {arguments.out}")


@contextmanager
def _coordinator(parent: Path | None, *, sqlite: bool) -> Iterator[Coordinator]:
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=parent)))
        url = None
        if not sqlite:
            server = stack.enter_context(PostgresServer(durable=True))
            server.create("load")
            url = server.url("load")
        yield stack.enter_context(running(folder, url, {}))


def _plan(clients: int, rounds: int, **adapter: Any) -> dict[str, Any]:
    return {
        "name": "load",
        "strategy": {"name": "fedavg"},
        "adapter": {"kind": "lora", "roles": ["q"], **adapter},
        "rounds": {"total": rounds, "min_clients": clients},
        "limits": {"max_norm": 1e9},
    }


def _federation(coordinator: Coordinator, clients: int, console: Console) -> tuple[str, list[Agent]]:
    """Enrol agents whose adapter has one MiB: ordinary LoRA of rank 4 on q in 8 layers of width 4096."""
    federation_id = coordinator.post("/v1/federations", _plan(clients, 1, rank=4))["id"]
    with console.status(f"{clients} agents enrol"):
        agents = enrol(coordinator, federation_id, clients, layers=_LAYERS, width=_WIDTH)
    return federation_id, agents


def _polls(coordinator: Coordinator, agents: list[Agent], seconds: float) -> dict[str, Any]:
    before = coordinator.cpu_seconds()
    end = time.monotonic() + seconds
    polls = asyncio.run(
        poll(coordinator.url, agents, every=POLL_EVERY_SECONDS, is_over=lambda: time.monotonic() >= end)
    )
    latencies = [item.seconds for item in polls]
    first = [item.seconds for item in polls if item.is_first]
    later = [item.seconds for item in polls if not item.is_first]
    return {
        "requests": len(latencies),
        "refused": sum(item.is_refused for item in polls),
        "p50_seconds": float(np.percentile(latencies, 50)),
        "p99_seconds": float(np.percentile(latencies, 99)),
        "p99_of_first_seconds": float(np.percentile(first, 99)),
        "p99_of_later_seconds": float(np.percentile(later or first, 99)),
        "cpu_share": (coordinator.cpu_seconds() - before) / seconds,
    }


def _uploads(
    coordinator: Coordinator, federation_id: str, agents: list[Agent]
) -> tuple[dict[str, Any], list[bytes]]:
    coordinator.post(f"/v1/federations/{federation_id}/start")
    bodies = asyncio.run(join(coordinator.url, agents))
    before = coordinator.cpu_seconds()
    seconds, sent_away = asyncio.run(upload(coordinator.url, agents, bodies))
    round_one = coordinator.get(f"/v1/federations/{federation_id}/rounds/1")
    measured = {
        "seconds": seconds,
        "told_to_come_again": sent_away,
        "arrived": round_one["counts"]["arrived"],
        "cpu_seconds": coordinator.cpu_seconds() - before,
        "peak_rss_mib": coordinator.peak_rss_mib(),
    }
    return measured, bodies


def _bare(agents: list[Agent], bodies: list[bytes]) -> dict[str, Any]:
    with PostgresServer(durable=True) as server:
        server.create("bare")
        with bare_store.running(server.url("bare")) as (url, process):
            before = process.cpu_times()
            seconds = asyncio.run(store(url, agents, bodies))
            after = process.cpu_times()
    return {"seconds": seconds, "cpu_seconds": after.user + after.system - before.user - before.system}


def _soak(coordinator: Coordinator, requests: int, console: Console) -> dict[str, Any]:
    clients = 4
    rounds = max(1, requests // (clients * 4))  # current, join, weights, update
    samples: list[tuple[int, float, int, int]] = []
    answered = 0

    def look(more: int) -> None:
        memory = coordinator.process.memory_info().rss / MIB
        files, threads = coordinator.process.num_fds(), coordinator.process.num_threads()
        samples.append((answered + more, memory, files, threads))

    with console.status(f"{rounds} rounds of {clients} clients"):
        for begun in range(0, rounds, _MOST_ROUNDS):
            subset = min(_MOST_ROUNDS, rounds - begun)
            federation_id = coordinator.post("/v1/federations", _plan(clients, subset, rank=1))["id"]
            agents = enrol(coordinator, federation_id, clients, layers=4, width=64)
            coordinator.post(f"/v1/federations/{federation_id}/start")
            answered += asyncio.run(soak(coordinator.url, agents, subset, look))
    warm = [sample for sample in samples if sample[0] >= answered / 4]
    slope = float(np.polyfit([item[0] for item in warm], [item[1] for item in warm], 1)[0])
    return {
        "requests": answered,
        "rounds": rounds,
        "rss_mib_per_10000": slope * 10_000,
        "rss_mib": [samples[0][1], samples[-1][1]],
        "files": [warm[0][2], warm[-1][2]],
        "threads": [warm[0][3], warm[-1][3]],
        "samples": samples,
    }


def _report(console: Console, result: dict[str, Any]) -> None:
    polls, uploads, soaked = result["polls"], result["uploads"], result["soak"]
    console.print(
        f"polls: p50 {polls['p50_seconds']:.3g} s; p99 of the agents' first, which connect, "
        f"{polls['p99_of_first_seconds']:.3g} s, of the later {polls['p99_of_later_seconds']:.3g} s"
    )
    if "bare" in result:
        bare = result["bare"]["seconds"]
        console.print(
            f"uploads {uploads['seconds']:.3g} s, the same bytes through a server that only stores them "
            f"{bare:.3g} s: {uploads['seconds'] / bare:.3g} times as long"
        )
        ratio = uploads["cpu_seconds"] / result["bare"]["cpu_seconds"]
        figures.judge(
            console,
            [
                figures.FigureLimit(
                    "uploads: the coordinator's processor time / the bare server's",
                    ratio,
                    GOAL_UPLOAD_CPU_RATIO,
                )
            ],
        )
    figures.judge(
        console,
        [
            figures.FigureLimit(
                f"{result['agents']} agents polling every 5 s: p99, s",
                polls["p99_seconds"],
                GOAL_POLL_P99_SECONDS,
            ),
            figures.FigureLimit("polls that were refused", polls["refused"], 0),
            figures.FigureLimit(
                f"{result['agents']} uploads of 1 MiB at once, s", uploads["seconds"], GOAL_UPLOAD_SECONDS
            ),
            figures.FigureLimit("peak RSS meanwhile, MiB", uploads["peak_rss_mib"], GOAL_UPLOAD_RSS_MIB),
            figures.FigureLimit("uploads that were lost", result["agents"] - uploads["arrived"], 0),
            figures.FigureLimit(
                "RSS slope, MiB per 10,000 requests", soaked["rss_mib_per_10000"], GOAL_SOAK_MIB_PER_10000
            ),
            figures.FigureLimit(
                "pipelined requests: peak RSS, MiB",
                max(item["peak_rss_mib"] for item in result["pipelines"]),
                GOAL_PIPELINES_RSS_MIB,
            ),
            figures.FigureLimit(
                "pipelined requests: slowest health probe, s",
                max(item["slowest_probe_seconds"] for item in result["pipelines"]),
                GOAL_PIPELINES_PROBE_SECONDS,
            ),
            figures.FigureLimit("files more at the end", soaked["files"][1] - soaked["files"][0], 0),
            figures.FigureLimit("threads more at the end", soaked["threads"][1] - soaked["threads"][0], 0),
        ],
    )


def _allow_many_connections() -> None:
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


if __name__ == "__main__":
    main()
