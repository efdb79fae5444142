"""Measure the load of connections that send requests back to back, and read the responses or never do.

    python -m benchmarks.pipelines [--connections 1 8 40] [--seconds 30] [--read]

The clients that read are a process of their own, so that they do not delay the health probes of this one.
Each number of connections gets a new coordinator on SQLite. `benchmarks.load` has these figures with goals.
"""

from __future__ import annotations

import argparse
import multiprocessing
import selectors
import socket
import tempfile
import threading
import time
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from benchmarks.anonymous_stall import latencies
from benchmarks.serving import Coordinator, running

_REQUESTS = b"GET /v1/hello HTTP/1.1\r\nHost: localhost\r\n\r\n" * 2000


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--connections", type=int, nargs="+", default=[1, 8, 40])
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--read", action="store_true", help="read the responses as fast as they come")
    arguments = parser.parse_args()
    for connections in arguments.connections:
        with tempfile.TemporaryDirectory() as folder, running(Path(folder), None, {}) as coordinator:
            figures = pipelined(coordinator, connections, arguments.seconds, reads=arguments.read)
        print(
            f"{connections} connections: peak RSS {figures['peak_rss_mib']:.0f} MiB,"
            f" slowest of {figures['probes']} health probes {figures['slowest_probe_seconds']:.2f} s",
            flush=True,
        )


def pipelined(
    coordinator: Coordinator, connections: int, seconds: float, *, reads: bool = False
) -> dict[str, Any]:
    """Return the peak memory of a coordinator and its slowest health probe beside so many connections.

    Args:
        reads: whether the connections read the responses.
    """
    place = urlsplit(coordinator.url)
    latencies(place.netloc, 2.0)  # the first requests build the routes
    stop = threading.Event()
    address = (place.hostname or "", place.port or 80)
    threads = [threading.Thread(target=_send, args=(address, stop)) for _ in range(connections)]
    reader = multiprocessing.get_context("spawn").Process(target=_exchange, args=(address, connections))
    senders: list[threading.Thread | multiprocessing.context.SpawnProcess] = [reader] if reads else [*threads]
    for sender in senders:
        sender.start()
    try:
        durations = latencies(place.netloc, seconds)
    finally:
        stop.set()
        if reads:
            reader.kill()
        for sender in senders:
            sender.join()
    return {
        "connections": connections,
        "peak_rss_mib": coordinator.peak_rss_mib(),
        "probes": len(durations),
        "slowest_probe_seconds": max(durations),
    }


def _exchange(address: tuple[str, int], connections: int) -> None:
    """Send requests and read their responses on all connections until the process is killed."""
    with ExitStack() as stack, selectors.DefaultSelector() as selector:
        remaining: dict[socket.socket, bytes] = {}
        while True:
            while len(remaining) < connections:
                opened = stack.enter_context(closing(socket.create_connection(address, timeout=5)))
                opened.setblocking(False)
                remaining[opened] = _REQUESTS
                selector.register(opened, selectors.EVENT_READ | selectors.EVENT_WRITE)
            for key, ready in selector.select():
                connection = key.fileobj
                assert isinstance(connection, socket.socket)
                try:
                    is_open = bool(connection.recv(2**16)) if ready & selectors.EVENT_READ else True
                    if ready & selectors.EVENT_WRITE:
                        sent_bytes = connection.send(remaining[connection])
                        remaining[connection] = remaining[connection][sent_bytes:] or _REQUESTS
                except OSError:
                    is_open = False
                if not is_open:
                    selector.unregister(connection)
                    del remaining[connection]


def _send(address: tuple[str, int], stop: threading.Event) -> None:
    """Send as much as is accepted, on a new connection whenever one is closed."""
    while not stop.is_set():
        with closing(socket.create_connection(address, timeout=5)) as connection:
            connection.settimeout(0.2)
            remaining = _REQUESTS
            try:
                while not stop.is_set():
                    try:
                        remaining = remaining[connection.send(remaining) :] or _REQUESTS
                    except TimeoutError:
                        time.sleep(0.05)
            except OSError:
                continue


if __name__ == "__main__":
    main()
