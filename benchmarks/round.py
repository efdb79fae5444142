"""Measure a round: N clients download B bytes from a running coordinator and upload B bytes, over loopback.

    python -m benchmarks.round [--clients 4 --mib 1 [--strategy fedmosaic]] [--rounds 5] [--postgres URL]
    python -m benchmarks.round --clients 8 --mib 8 --rounds 20 --profile runs/profiles/fedavg-8x8

Without sizes it goes through those of the goals, and through one with more clients, for memory. Under fedavg
all clients are served the same values, which are stored once; under fedmosaic N distinct bodies are made. The
clients are processes of their own; they use the agent's HTTP client and train nothing. A round's seconds are
counted from the moment when all clients hold its weights until all hold the next round's: every byte goes up
once and down once. `from_open` counts from the round opening, its own join and download included.
Beside it, in the same run: SHA-256 of the same bytes, written to files and synced.
"""

from __future__ import annotations

import argparse
import hashlib
import multiprocessing
import os
import statistics
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks import figures, flame_graph, stack_samples, statement_counts
from benchmarks.memory import MIB
from benchmarks.profiled_server import PROFILED_FROM_HERE, PROFILED_TO_HERE
from benchmarks.round_client import Task, WeightsReceipt, take_part
from benchmarks.round_report import draw, show
from benchmarks.serving import Coordinator, ServerFailed, running
from schemas.messages.enrolment import Profile

SIZES = (
    (4, 1, "fedavg"),
    (8, 8, "fedavg"),
    (8, 8, "fedmosaic"),
    (32, 8, "fedavg"),
    (8, 64, "fedavg"),
    (8, 64, "fedmosaic"),
)
_LAYERS, _WIDTH = 8, 4096
_SILENCE_SECONDS = 180.0
_FEWEST_PROFILED = 4
_FIRST_COUNTED = 2  # when all have the weights of the second round, the first is over
# Changes are nearly orthogonal: at this temperature each client is served nearly the mean of all.
_OPTIONS = {"fedmosaic": {"change_temperature": 1.0, "min_relevance": None, "guard": "off"}}
_PHASES = ("open", "collecting", "closing", "aggregating")


def main() -> None:
    """Measure, show, write."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.round", description=__doc__)
    parser.add_argument(
        "--clients", type=int, help="how many clients; with --mib, instead of the usual sizes"
    )
    parser.add_argument("--mib", type=int, help="how many MiB an adapter has")
    parser.add_argument(
        "--strategy", choices=("fedavg", "fedmosaic"), default="fedavg", help="of the size that was named"
    )
    parser.add_argument(
        "--rounds", type=int, default=5, help="how many rounds are counted, after a first one"
    )
    parser.add_argument("--compress", action="store_true", help="updates as zstd frames")
    parser.add_argument("--postgres", help="URL of an empty database, instead of a SQLite file")
    parser.add_argument("--folder", type=Path, help="where the database is, on the disk to be measured")
    parser.add_argument("--out", type=Path, default=Path("runs/benchmarks/round.json"))
    parser.add_argument(
        "--profile",
        type=Path,
        help="sample the server's stacks, count its write transactions; the beginning of the files' names",
    )
    arguments = parser.parse_args()
    if (arguments.clients is None) != (arguments.mib is None):
        parser.error("--clients and --mib belong together")
    if arguments.profile is not None and arguments.clients is None:
        parser.error("--profile needs --clients and --mib")
    if arguments.profile is not None and arguments.rounds < _FEWEST_PROFILED:
        parser.error(
            f"--profile needs --rounds {_FEWEST_PROFILED} or more, half of them for each kind of time"
        )
    named = (arguments.clients, arguments.mib, arguments.strategy)
    sizes = SIZES if arguments.clients is None else (named,)
    measured: list[dict[str, Any]] = []
    console = Console()
    for clients, mib, strategy in sizes:
        with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
            size = measure(
                clients,
                mib,
                strategy=strategy,
                rounds=arguments.rounds,
                folder=Path(folder),
                compress=arguments.compress,
                database_url=arguments.postgres,
                profile=arguments.profile,
            )
        measured.append(size)
        console.print(f"{clients} x {mib} MiB, {strategy}: {size['seconds']:.3f} s per round")
    result = {"machine": figures.machine(), "sizes": measured}
    figures.write(arguments.out, result)
    show(console, result)
    draw(arguments.out.with_suffix(".svg"), result)
    if arguments.profile is not None:
        for kind, stacks in stack_samples.read(arguments.profile).items():
            flame_graph.show(console, f"half of {arguments.rounds} rounds: {kind} time of the server", stacks)
            flame_graph.draw(arguments.profile.with_suffix(f".{kind}.svg"), stacks)
        counts = statement_counts.read(_counts(arguments.profile))
        statement_counts.show(console, counts, arguments.rounds)
        console.print(f"flame graphs beside {arguments.profile}")
    console.print(f"figures in {arguments.out}")


def measure(
    clients: int,
    mib: int,
    *,
    strategy: str = "fedavg",
    rounds: int,
    folder: Path,
    compress: bool = False,
    database_url: str | None = None,
    profile: Path | None = None,
) -> dict[str, Any]:
    """Run one federation of `clients` adapters of `mib` MiB; return medians over rounds.

    With `profile` the server's stacks are sampled in the counted rounds, which costs some time itself.

    Raises:
        ServerFailed: the server or a client failed; its output is printed before.
    """
    counts = _counts(profile) if profile is not None else None
    with running(folder, database_url, {}, counts=counts) as coordinator:
        idle_rss, idle_cpu = coordinator.peak_rss_mib(), coordinator.cpu_seconds()
        plan = _plan(clients, mib, rounds + 1, strategy, compress)
        federation_id, observed = _run(coordinator, plan, profile=profile)
        views = [coordinator.get(f"/v1/federations/{federation_id}/rounds/{n}") for n in range(2, rounds + 2)]
        total_cpu = coordinator.cpu_seconds() - idle_cpu
    reference = _copy_and_hash(folder, clients, mib, rounds)
    payload = clients * mib * MIB
    spans = [after.at - before.at for before, after in pairwise(observed[1:])]
    processor = [after.cpu - before.cpu for before, after in pairwise(observed[1:])]
    wire = (observed[-1].wire - observed[1].wire) / rounds
    opened = [datetime.fromisoformat(view["opened_at"]).timestamp() for view in views]
    return {
        "clients": clients,
        "mib": mib,
        "strategy": strategy,
        "rounds": rounds,
        "compressed": compress,
        "seconds": statistics.median(spans),
        "seconds_each": spans,
        "from_open_seconds": statistics.median(
            end.wall - begin for begin, end in zip(opened, observed[2:], strict=True)
        ),
        "phases": {phase: statistics.median(view["seconds"][phase] for view in views) for phase in _PHASES},
        "copy_and_hash_seconds": statistics.median(item[0] for item in reference),
        "copy_and_hash_cpu_seconds": statistics.median(item[1] for item in reference),
        "cpu_seconds": statistics.median(processor),
        "cpu_seconds_first_to_last": total_cpu,
        "idle_rss_mib": idle_rss,
        "peak_rss_mib": observed[-1].rss,
        "wire_bytes": wire,
        "wire_ratio": wire / (2 * payload),
    }


@dataclass(frozen=True, slots=True)
class _Moment:
    """The moment when the last client has a round's weights."""

    at: float
    wall: float
    cpu: float
    rss: float
    wire: int


def _run(
    coordinator: Coordinator, plan: dict[str, Any], *, profile: Path | None
) -> tuple[str, list[_Moment]]:
    clients, strategy = plan["rounds"]["min_clients"], plan["strategy"]["name"]
    compress = plan["wire"]["compression"] == "zstd"
    federation_id = coordinator.post("/v1/federations", plan)["id"]
    context = multiprocessing.get_context("spawn")
    reported = context.Queue()
    processes = []
    for place in range(clients):
        expected = {"client_name": f"client-{place}"}
        token = coordinator.post(f"/v1/federations/{federation_id}/enrolment-tokens", expected)["token"]
        task = Task(coordinator.url, token, place, clients, _profile(), strategy, compress)
        processes.append(context.Process(target=take_part, args=(task, reported), daemon=True))
    try:
        for process in processes:
            process.start()
        _wait_for_members(coordinator, federation_id, clients)
        coordinator.post(f"/v1/federations/{federation_id}/start")
        moments = _watch(coordinator, reported, clients, plan["rounds"]["total"], profile=profile)
        return federation_id, moments
    finally:
        for process in processes:
            process.join(timeout=10)
            process.kill()


def _wait_for_members(coordinator: Coordinator, federation_id: str, clients: int) -> None:
    deadline = time.monotonic() + _SILENCE_SECONDS
    while coordinator.get(f"/v1/federations/{federation_id}")["clients"]["enrolled"] < clients:
        if time.monotonic() > deadline:
            raise ServerFailed("the clients did not enrol")
        time.sleep(0.1)
    time.sleep(1.0)  # each makes its random numbers, which is not what is measured


def _watch(
    coordinator: Coordinator, reported: Any, clients: int, rounds: int, *, profile: Path | None
) -> list[_Moment]:
    """Record the moments when all clients have the weights of rounds 1 to `rounds` + 1."""
    waiting: dict[int, list[WeightsReceipt]] = {}
    moments: list[_Moment] = []
    latest: dict[int, WeightsReceipt] = {}
    # Each kind of samples has one half of the counted rounds.
    kinds = dict(zip((_FIRST_COUNTED, _FIRST_COUNTED + (rounds - 1) // 2), stack_samples.KINDS, strict=True))
    with ExitStack() as profiling, ExitStack() as sampling:
        while len(moments) <= rounds:
            holds = reported.get(timeout=_SILENCE_SECONDS)
            if isinstance(holds, str):
                raise ServerFailed(holds)
            latest[holds.place] = holds
            arrived = waiting.setdefault(holds.round, [])
            arrived.append(holds)
            if len(arrived) == clients:
                at = max(item.at for item in arrived)
                moments.append(
                    _Moment(
                        at=at,
                        wall=time.time() - (time.monotonic() - at),
                        cpu=coordinator.cpu_seconds(),
                        rss=coordinator.peak_rss_mib(),
                        wire=sum(item.sent + item.received for item in arrived),
                    )
                )
                if profile is not None and len(moments) == _FIRST_COUNTED:
                    profiling.enter_context(_counted(coordinator.process))
                if profile is not None and len(moments) in kinds:
                    sampling.close()
                    kind = kinds[len(moments)]
                    sampling.enter_context(stack_samples.sampled(kind, coordinator.process.pid, profile))
    return moments


@contextmanager
def _counted(process: subprocess.Popen[bytes]) -> Iterator[None]:
    process.send_signal(PROFILED_FROM_HERE)
    yield
    process.send_signal(PROFILED_TO_HERE)


def _counts(profile: Path) -> Path:
    profile.parent.mkdir(parents=True, exist_ok=True)
    return profile.with_suffix(".counts.json").absolute()


def _plan(clients: int, mib: int, rounds: int, strategy: str, compress: bool) -> dict[str, Any]:
    """Ordinary LoRA on q in 8 layers of width 4096: A and B of rank 4 have one MiB."""
    return {
        "name": f"{clients} x {mib} MiB",
        "strategy": {"name": strategy, "options": _OPTIONS.get(strategy, {})},
        "signature": {"dim": clients},
        "adapter": {"kind": "lora", "rank": mib * MIB // (4 * 2 * _WIDTH * _LAYERS), "roles": ["q"]},
        "rounds": {"total": rounds, "min_clients": clients},
        "limits": {"max_update_bytes": (mib + 1) * MIB, "max_norm": 1e9},
        "wire": {"compression": "zstd" if compress else "none"},
    }


def _profile() -> Profile:
    return Profile(
        architecture="benchmark",
        base_model="benchmark-000000000000",
        hidden_size=_WIDTH,
        layers=_LAYERS,
        shapes={"q": (_WIDTH, _WIDTH)},
        agent_version="0",
        protocol_version=2,
    )


def _copy_and_hash(folder: Path, clients: int, mib: int, repeats: int) -> list[tuple[float, float]]:
    """Hash 2 N bodies and write each to a file, synced: (seconds, processor seconds), several times."""
    body = os.urandom(mib * MIB)
    result = []
    for _ in range(repeats):
        began, used = time.perf_counter(), time.process_time()
        for place in range(2 * clients):
            hashlib.sha256(body).digest()
            with (folder / f"copy-{place}").open("wb") as file:
                file.write(body)
                file.flush()
                os.fsync(file.fileno())
        result.append((time.perf_counter() - began, time.process_time() - used))
        for place in range(2 * clients):
            (folder / f"copy-{place}").unlink()
    return result


if __name__ == "__main__":
    main()
