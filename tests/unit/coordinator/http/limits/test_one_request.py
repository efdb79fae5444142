"""A real server parses one request of a connection at a time, however many are sent at once."""

from __future__ import annotations

import asyncio
import re
import socket
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import closing, contextmanager, suppress
from typing import Any

import pytest
import uvicorn

from coordinator.http.limits import one_request
from coordinator.http.limits.connections import BoundedConnection, connections
from tests.scene.waiting import wait_until
from tests.unit.coordinator.http.limits.threads import running as in_thread

Send = Callable[[dict[str, Any]], Awaitable[None]]
Receive = Callable[[], Awaitable[dict[str, Any]]]
READ_BYTES = 2**18  # of one read of asyncio and uvloop


class Echo(uvicorn.Server):
    """A server that answers with the method, the path and the body of each request, after `opened`."""

    def __init__(self) -> None:
        self.opened = threading.Event()
        self.opened.set()
        self.calls = 0
        super().__init__(
            uvicorn.Config(
                self.app,
                http=connections(1_000_000, 100),
                port=0,
                log_config=None,
                lifespan="off",
                ws="none",
                interface="asgi3",
            )
        )

    async def app(self, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        self.calls += 1
        body, is_more = b"", True
        while is_more:
            message = await receive()
            body, is_more = body + message.get("body", b""), message.get("more_body", False)
        while not self.opened.is_set() and not self.should_exit:
            await asyncio.sleep(0.005)
        content = f"[{scope['method']} {scope['path']} ".encode() + body + b"]"
        length = str(len(content)).encode()
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", length)]})
        await send({"type": "http.response.body", "body": content})

    @property
    def protocols(self) -> list[BoundedConnection]:
        return [item for item in self.server_state.connections if isinstance(item, BoundedConnection)]

    def connect(self) -> socket.socket:
        return socket.create_connection(self.servers[0].sockets[0].getsockname()[:2], timeout=20)


@contextmanager
def running() -> Iterator[Echo]:
    server = Echo()
    with in_thread(server):
        try:
            yield server
        finally:
            server.opened.set()


@pytest.fixture(scope="module")
def server() -> Iterator[Echo]:
    with running() as echo:
        yield echo


@pytest.fixture(autouse=True)
def _opened(server: Echo) -> Iterator[None]:
    yield
    server.opened.set()


def responses(line: socket.socket, count: int) -> list[str]:
    """Return the bodies of so many responses, or of all before the connection is closed."""
    received = b""
    while len(re.findall(rb"\]", received)) < count and (piece := line.recv(65536)):
        received += piece
    return [body.decode() for body in re.findall(rb"\[[^\]]*\]", received)]


def head(method: str, path: str, *fields: str, version: str = "1.1") -> bytes:
    return "\r\n".join([f"{method} {path} HTTP/{version}", "Host: localhost", *fields, "", ""]).encode()


CHUNKS = b"3\r\nabc\r\n4\r\n\r\n\r\n\r\n2;a=b\r\nde\r\n0\r\nA: b\r\n\r\n"
MIXED = (
    head("GET", "/1")
    + head("POST", "/2", "Content-Length: 5")
    + b"\r\n\r\nx"
    + head("PUT", "/3", "Transfer-Encoding: chunked")
    + CHUNKS
    + head("POST", "/4", "Content-Length: 0")
    + head("PUT", "/5", "Transfer-Encoding: chunked")
    + b"0\r\n\r\n"
    + b"\r\n"
    + head("GET", "/6", "X-Field: " + "x" * 3000)
    + head("POST", "/7", "Content-Length: 70000")
    + b"y" * 70000
    + head("GET", "/8")
)
ANSWERED = [
    "[GET /1 ]",
    "[POST /2 \r\n\r\nx]",
    "[PUT /3 abc\r\n\r\nde]",
    "[POST /4 ]",
    "[PUT /5 ]",
    "[GET /6 ]",
    "[POST /7 " + "y" * 70000 + "]",
    "[GET /8 ]",
]


@pytest.mark.parametrize("size", [1, 3, 7, 1000, 10**6])
def test_mixed_requests_are_answered_in_order(server: Echo, size: int) -> None:
    with closing(server.connect()) as line:
        line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        small = MIXED if size > 100 else MIXED.replace(b"y" * 70000, b"y" * 70).replace(b"70000", b"70")
        for begin in range(0, len(small), size):
            line.sendall(small[begin : begin + size])
        answered = responses(line, 8)
    assert answered == [text.replace("y" * 70000, "y" * 70) if size <= 100 else text for text in ANSWERED]


def send_until_blocked(line: socket.socket, request: bytes) -> int:
    """Send a request repeatedly until the server reads no more; return the sent bytes."""
    line.setblocking(False)
    total, quiet, unsent = 0, 0, b""
    while quiet < 20:
        unsent = unsent or request * 100
        try:
            size = line.send(unsent)
            total, unsent, quiet = total + size, unsent[size:], 0
        except BlockingIOError:
            quiet += 1
            time.sleep(0.01)
    line.settimeout(20)
    return total


KINDS = {
    "GET": head("GET", "/a"),
    "HEAD": head("HEAD", "/a"),
    "shortest": b"GET / HTTP/1.1\r\n\r\n",
    "HTTP/1.0": head("GET", "/a", version="1.0"),
    "with a length": head("POST", "/a", "Content-Length: 9") + b"123456789",
    "chunked": head("POST", "/a", "Transfer-Encoding: chunked") + CHUNKS,
    "a large body": head("POST", "/a", "Content-Length: 300000") + bytes(300000),
    "expecting 100": head("POST", "/a", "Content-Length: 3", "Expect: 100-continue") + b"abc",
    "an upgrade": head("GET", "/a", "Connection: Upgrade", "Upgrade: websocket"),
    "CONNECT": head("CONNECT", "a.org:443"),
    "empty lines": b"\r\n\r\n",
}


@pytest.mark.parametrize("kind", KINDS)
def test_requests_behind_an_unanswered_request_are_held(server: Echo, kind: str) -> None:
    server.opened.clear()
    calls, before = server.calls, set(server.protocols)
    with closing(server.connect()) as line:
        line.sendall(head("GET", "/first"))
        wait_until(lambda: server.calls == calls + 1)
        (protocol,) = set(server.protocols) - before
        sent = send_until_blocked(line, KINDS[kind])
        assert sent > READ_BYTES, "the kernel holds the rest"
        assert server.calls == calls + 1
        assert not protocol.pipeline
        assert protocol.held_bytes <= READ_BYTES
        assert not protocol.transport.is_reading()
        server.opened.set()
        assert responses(line, 1)[0] == "[GET /first ]"
    wait_until(lambda: protocol not in server.protocols)
    assert protocol.held_bytes == 0


@pytest.mark.parametrize("kind", ["HTTP/1.0", "an upgrade"])
def test_requests_behind_a_last_request_are_ignored(server: Echo, kind: str) -> None:
    calls = server.calls
    with closing(server.connect()) as line:
        line.sendall(KINDS[kind] + head("GET", "/hidden"))
        assert responses(line, 2) == ["[GET /a ]"]
    assert server.calls == calls + 1


def test_a_100_continue_waits_for_its_request(server: Echo) -> None:
    server.opened.clear()
    with closing(server.connect()) as line:
        line.sendall(head("GET", "/first") + KINDS["expecting 100"])
        line.settimeout(0.2)
        with pytest.raises(TimeoutError):
            line.recv(1)
        line.settimeout(20)
        server.opened.set()
        text = b""
        while not text.endswith(b"abc]"):
            text += line.recv(65536)
    assert text.index(b"[GET /first ]") < text.index(b"HTTP/1.1 100 Continue") < text.index(b"[POST /a abc]")


def test_connections_that_hold_too_much_are_refused(server: Echo, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(one_request, "HELD_BYTES", 1000)
    server.opened.clear()
    with closing(server.connect()) as line, closing(server.connect()) as patient:
        patient.sendall(head("GET", "/patient"))
        line.sendall(head("GET", "/first") + head("GET", "/a") * 100)
        answer = b""
        while piece := line.recv(65536):
            answer += piece
        assert answer.startswith(b"HTTP/1.1 503 ")
        assert b"retry-after" in answer
        server.opened.set()
        assert responses(patient, 1) == ["[GET /patient ]"]
    line_again = server.connect()
    with closing(line_again):
        line_again.sendall(head("GET", "/again") * 2)
        assert responses(line_again, 2) == ["[GET /again ]"] * 2


def test_a_chunked_body_of_endings_is_refused(server: Echo) -> None:
    chunk = b"10000\r\n" + b"\r\n" * 2**15 + b"\r\n"
    with closing(server.connect()) as line:
        line.sendall(head("POST", "/1", "Transfer-Encoding: chunked"))
        with suppress(OSError):
            line.sendall(chunk)
        assert b" 400 " in line.recv(65536).split(b"\r\n")[0]


def test_a_malformed_request_behind_another_is_refused(server: Echo) -> None:
    with closing(server.connect()) as line:
        line.sendall(head("GET", "/first") + b"no request\r\n\r\n" + head("GET", "/hidden"))
        text = b""
        while piece := line.recv(65536):
            text += piece
    assert text.index(b"[GET /first ]") < text.index(b"HTTP/1.1 400 ")
    assert b"hidden" not in text


def test_a_partial_pipelined_request_has_a_deadline(server: Echo, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("coordinator.http.limits.connections.HEAD_SECONDS", 0.3)
    server.opened.clear()
    with closing(server.connect()) as line:
        line.sendall(head("GET", "/first") + b"GET /half HTTP/1.1\r\n")
        time.sleep(0.5)
        server.opened.set()
        text = b""
        while piece := line.recv(65536):
            text += piece
    assert b"[GET /first ]" in text
    assert b"HTTP/1.1 408 " in text
