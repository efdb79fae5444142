"""Measure how long /healthz takes while strangers send enrolments that cannot be read.

    python -m benchmarks.anonymous_stall

Prints the 99th percentile without other load, and with one and four connections of strangers. These run in
another process, and send the next body as soon as the last one is answered. There are two bodies: one with as
many faults as fit into an enrolment, and a well-formed one with an unknown token.
"""

from __future__ import annotations

import http.client
import json
import multiprocessing
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.synchronize import Event
from pathlib import Path
from urllib.parse import urlsplit

from benchmarks.serving import running

SECONDS = 10.0
PAUSE_SECONDS = 0.002
ATTACKERS = (1, 4)
_PROFILE = {
    "architecture": "L",
    "base_model": "tiny-s-3f0c9a1b2c3d",
    "hidden_size": 96,
    "layers": 4,
    "agent_version": "0",
    "protocol_version": 2,
}
BODIES = {
    "60 kB of faults": json.dumps({"token": "a", "name": "b", "profile": {"roles": [0] * 20_000}}),
    "16 kB of faults": json.dumps({"token": "a", "name": "b", "profile": {"roles": [0] * 5_000}}),
    "a guessed token": json.dumps({"token": "tsr1_guess", "name": "b", "profile": _PROFILE}),
}


def main() -> None:
    """Measure and print."""
    with tempfile.TemporaryDirectory() as folder, running(Path(folder), None, {}) as coordinator:
        address = urlsplit(coordinator.url).netloc
        latencies(address, 2.0)  # the first requests build the routes
        for name, body in BODIES.items():
            quiet = p99(latencies(address, SECONDS))
            print(f"{name}: quiet p99 {1e3 * quiet:.1f} ms", flush=True)
            for connections in ATTACKERS:
                with attacked(address, body.encode(), connections):
                    figure = p99(latencies(address, SECONDS))
                print(
                    f"{name}: {connections} connections, p99 {1e3 * figure:.1f} ms,"
                    f" {figure / quiet:.1f} times quiet",
                    flush=True,
                )


def latencies(address: str, seconds: float) -> list[float]:
    """Return the seconds that each of many requests for /healthz took, one after the other."""
    connection = http.client.HTTPConnection(address, timeout=60)
    durations: list[float] = []
    ends_at = time.perf_counter() + seconds
    while (began := time.perf_counter()) < ends_at:
        connection.request("GET", "/healthz")
        connection.getresponse().read()
        durations.append(time.perf_counter() - began)
        time.sleep(PAUSE_SECONDS)
    connection.close()
    return durations


def p99(durations: list[float]) -> float:
    """Return the 99th percentile."""
    return sorted(durations)[int(0.99 * len(durations))]


@contextmanager
def attacked(address: str, body: bytes, connections: int) -> Iterator[None]:
    """Send a body again and again, from another process, until the block ends."""
    context = multiprocessing.get_context("spawn")
    stop = context.Event()
    process = context.Process(target=_attack, args=(address, body, connections, stop))
    process.start()
    time.sleep(1.0)
    try:
        yield
    finally:
        stop.set()
        process.join()


def _attack(address: str, body: bytes, connections: int, stop: Event) -> None:
    threads = [threading.Thread(target=_send, args=(address, body, stop)) for _ in range(connections)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _send(address: str, body: bytes, stop: Event) -> None:
    connection = http.client.HTTPConnection(address, timeout=60)
    while not stop.is_set():
        try:
            connection.request("POST", "/v1/enrolments", body, {"Content-Type": "application/json"})
            connection.getresponse().read()
        except (OSError, http.client.HTTPException):
            connection.close()


if __name__ == "__main__":
    main()
