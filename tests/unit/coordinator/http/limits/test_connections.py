"""Connections whose clients stop reading answers are closed; slow readers stay connected."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Awaitable, Callable
from contextlib import closing
from typing import Any

import pytest
import uvicorn

from coordinator.http.limits import connections as limits
from coordinator.http.limits.connections import connections
from tests.scene.waiting import wait_until
from tests.unit.coordinator.http.limits.threads import running

Send = Callable[[dict[str, Any]], Awaitable[None]]
App = Callable[[dict[str, Any], Callable[[], Awaitable[dict[str, Any]]], Send], Awaitable[None]]
GET = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"
CHUNKED = b"POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
START = {"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"100000000")]}


class Answering(uvicorn.Server):
    """A server of bounded connections."""

    def __init__(self, app: App) -> None:
        kind = connections(1_000_000, 10)
        super().__init__(uvicorn.Config(app, http=kind, port=0, log_config=None, lifespan="off"))

    @property
    def waiting_bytes(self) -> int:
        """Return the unsent bytes of answers in this process."""
        return sum(
            connection.transport.get_write_buffer_size() for connection in self.server_state.connections
        )  # type: ignore[union-attr]

    def connect(self, *, window: int) -> socket.socket:
        """Connect with a receive buffer of this size."""
        line = socket.socket()
        line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, window)
        line.settimeout(30)
        line.connect(self.servers[0].sockets[0].getsockname())
        return line


@pytest.mark.slow
def test_a_refused_client_that_stops_reading_is_disconnected(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "IDLE_SECONDS", 1.0)
    waits = threading.Event()

    async def a_little_at_a_time(_: Any, receive: Callable[[], Awaitable[Any]], send: Send) -> None:
        await send(START)
        while not server.waiting_bytes:  # far less than what makes the server look at a reader by itself
            await send({"type": "http.response.body", "body": bytes(2048), "more_body": True})
        waits.set()
        await receive()  # the connection's end

    server = Answering(a_little_at_a_time)
    with running(server), closing(server.connect(window=4096)) as line:
        line.sendall(CHUNKED)
        assert waits.wait(10)
        time.sleep(2.5)
        assert server.server_state.connections, "nobody is in a hurry while the answer goes on"
        line.sendall(b"no chunk\r\n\r\n")
        wait_until(lambda: not server.server_state.connections)


@pytest.mark.long
def test_a_slow_steady_reader_stays_connected(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "IDLE_SECONDS", 4.0)

    async def all_at_once(_: Any, __: Any, send: Send) -> None:
        await send(START)
        for _ in range(100):
            await send({"type": "http.response.body", "body": bytes(10**6), "more_body": True})

    server = Answering(all_at_once)
    with running(server), closing(server.connect(window=2**16)) as line:
        line.sendall(GET)
        received, began = 0, time.monotonic()
        while received < 10**6:
            piece = line.recv(2**14)
            assert piece, "cut off, at twice the pace"
            received += len(piece)
            time.sleep(max(0.0, began + received / 1e5 - time.monotonic()))
