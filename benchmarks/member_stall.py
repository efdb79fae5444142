"""Measure how long /healthz takes while one client holds many long polls.

    python -m benchmarks.member_stall

Prints the 99th percentile when nobody else asks, and with sixty connections of one enrolled client, which are
in another process. Two clients: one that sends the next poll as soon as the last is answered, and one that
follows Retry-After, as agents do.
"""

from __future__ import annotations

import http.client
import multiprocessing
import secrets
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.synchronize import Event
from pathlib import Path
from urllib.parse import urlsplit

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from benchmarks.anonymous_stall import SECONDS, latencies, p99
from benchmarks.load_agents import enrol
from benchmarks.serving import running
from schemas.identity.signed_requests import Target, sign

CONNECTIONS = 60
_WAIT_SECONDS = 30
_SETTLING_SECONDS = 2.0
_PLAN = {
    "name": "stall",
    "strategy": {"name": "fedavg"},
    "adapter": {"kind": "lora", "rank": 2, "roles": ["q"]},
    "rounds": {"min_clients": 2, "total": 1},
}


def main() -> None:
    """Measure and print."""
    settings = {"TESSERA_POLLS_PER_SECOND": "1"}
    with tempfile.TemporaryDirectory() as folder, running(Path(folder), None, settings) as coordinator:
        address = urlsplit(coordinator.url).netloc
        federation_id = coordinator.post("/v1/federations", _PLAN)["id"]
        (agent,) = enrol(coordinator, federation_id, 1, layers=4, width=16)
        latencies(address, 2.0)  # the first requests build the routes
        for name, is_polite in (("at once", False), ("after Retry-After", True)):
            quiet = p99(latencies(address, SECONDS))
            print(f"quiet: p99 {1e3 * quiet:.1f} ms", flush=True)
            path = f"/v1/federations/{federation_id}/rounds/current"
            with _polled(address, path, agent.key, is_polite=is_polite):
                figure = p99(latencies(address, SECONDS))
            print(
                f"{CONNECTIONS} polls of one client, the next one {name}: p99 {1e3 * figure:.1f} ms,"
                f" {figure / quiet:.1f} times quiet",
                flush=True,
            )


@contextmanager
def _polled(address: str, path: str, key: Ed25519PrivateKey, *, is_polite: bool) -> Iterator[None]:
    """Poll on all connections, from another process, until the block ends; print how they were answered."""
    context = multiprocessing.get_context("spawn")
    stop = context.Event()
    arguments = (address, path, key.private_bytes_raw(), is_polite, stop)
    process = context.Process(target=_poll_all, args=arguments)
    process.start()
    time.sleep(_SETTLING_SECONDS)
    try:
        yield
    finally:
        stop.set()
        process.join()


def _poll_all(address: str, path: str, raw: bytes, is_polite: bool, stop: Event) -> None:
    statuses: Counter[int] = Counter()
    arguments = (address, path, Ed25519PrivateKey.from_private_bytes(raw), is_polite, stop, statuses)
    threads = [threading.Thread(target=_poll, args=arguments, daemon=True) for _ in range(CONNECTIONS)]
    for thread in threads:
        thread.start()
    stop.wait()
    print(f"answers of the polls by status: {dict(statuses)}", flush=True)


def _poll(
    address: str, path: str, key: Ed25519PrivateKey, is_polite: bool, stop: Event, statuses: Counter[int]
) -> None:
    connection = http.client.HTTPConnection(address, timeout=60)
    while not stop.is_set():
        target = Target("GET", address, path, "", None, prefer=f"wait={_WAIT_SECONDS}")
        headers = sign(target, key, created=int(time.time()), nonce=secrets.token_urlsafe(16))
        try:
            connection.request("GET", path, headers={"Prefer": f"wait={_WAIT_SECONDS}", **headers})
            answer = connection.getresponse()
            answer.read()
            statuses[answer.status] += 1
            if is_polite:
                stop.wait(float(answer.headers.get("Retry-After", "0")))
        except (OSError, http.client.HTTPException):
            connection.close()


if __name__ == "__main__":
    main()
