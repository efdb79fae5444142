"""Row 53: connections that send requests back to back, without awaiting or reading the responses."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress

import pytest

from tests.attacks.hostile.attack import MEMORY_BYTES
from tests.attacks.hostile.scene import Scene, is_answered
from tests.scene.coordinator import ADMIN_TOKEN
from tests.scene.rounds import upload_headers
from tests.scene.signed_requests import request_bytes, signed

CONNECTIONS = 8
SECONDS = 2.0
PROBE_SECONDS = 1.0
_REPEATED_BYTES = 2**18
_HOST = b"Host: localhost\r\n"
_JSON = b"Content-Type: application/json\r\n"


@pytest.fixture(autouse=True)
def _on_one_database(backend: str) -> None:
    if backend != "sqlite":
        pytest.skip("connections are the same on both databases")


def _member(scene: Scene) -> bytes:
    path = f"/v1/federations/{scene.silo.federation_id}/plan"
    return request_bytes(signed(scene.served, scene.silo, "GET", path))


def _member_with_body(scene: Scene) -> bytes:
    body = bytes(len(scene.good()))
    fields = {"Content-Type": upload_headers(body)["Content-Type"]}
    return request_bytes(signed(scene.served, scene.silo, "PUT", scene.update, body, **fields), body=body)


def _operator(scene: Scene) -> bytes:
    return (
        b"GET /v1/federations HTTP/1.1\r\n" + _HOST + f"Authorization: Bearer {ADMIN_TOKEN}\r\n\r\n".encode()
    )


KINDS: dict[str, Callable[[Scene], bytes]] = {
    "anonymous": lambda _: b"GET /v1/hello HTTP/1.1\r\n" + _HOST + b"\r\n",
    "anonymous HEAD": lambda _: b"HEAD /v1/hello HTTP/1.1\r\n" + _HOST + b"\r\n",
    "anonymous body": lambda _: (
        b"POST /v1/enrolments HTTP/1.1\r\n" + _HOST + _JSON + b"Content-Length: 60000\r\n\r\n" + b"[" * 60000
    ),
    "anonymous chunks": lambda _: (
        b"POST /v1/enrolments HTTP/1.1\r\n"
        + (_HOST + _JSON + b"Transfer-Encoding: chunked\r\n\r\n")
        + (b"1\r\n[\r\n" * 500 + b"0\r\n\r\n")
    ),
    "member": _member,
    "member's update": _member_with_body,
    "operator": _operator,
}


def _send(line: socket.socket, request: bytes, stop: threading.Event, *, reads: bool) -> None:
    """Send a request again and again as fast as it is accepted, on a new connection when one is closed."""
    address = line.getpeername()
    repeated = request * max(1, _REPEATED_BYTES // len(request))
    remaining = b""
    line.settimeout(0.05)
    while not stop.is_set():
        remaining = remaining or repeated
        try:
            remaining = remaining[line.send(remaining) :]
        except TimeoutError:
            pass
        except OSError:
            line.close()
            line = socket.create_connection(address, timeout=5)
            line.settimeout(0.05)
            remaining = b""
        if reads:
            with suppress(OSError):
                line.recv(2**20)
    line.close()


@contextmanager
def _pipelines(scene: Scene, request: bytes, *, reads: bool) -> Iterator[None]:
    stop = threading.Event()
    with ExitStack() as stack:
        for _ in range(CONNECTIONS):
            line = scene.served.line()
            thread = threading.Thread(target=_send, args=(line, request, stop), kwargs={"reads": reads})
            thread.start()
            stack.callback(thread.join)
        stack.callback(stop.set)
        yield


def _slowest_probe(scene: Scene, seconds: float) -> float:
    """Return the longest time that a health probe on a new connection took, in seconds."""
    longest, ends = 0.0, time.monotonic() + seconds
    while (began := time.monotonic()) < ends:
        with scene.served.line(30) as line:
            line.sendall(b"GET /healthz HTTP/1.1\r\n" + _HOST + b"Connection: close\r\n\r\n")
            assert line.recv(1000).startswith(b"HTTP/1.1 200 ")
        longest = max(longest, time.monotonic() - began)
        time.sleep(0.02)
    return longest


@pytest.mark.slow
@pytest.mark.parametrize("reads", [False, True], ids=["slow reader", "reader"])
@pytest.mark.parametrize("kind", KINDS)
def test_pipelined_requests_cost_little(scene: Scene, kind: str, reads: bool) -> None:
    request = KINDS[kind](scene)
    with scene.served.line(30) as line:  # the first request of a kind builds its routes
        line.sendall(request)
        assert line.recv(65536)
    before, in_use = scene.stored(), scene.served.forget_peak()
    with _pipelines(scene, request, reads=reads):
        assert _slowest_probe(scene, SECONDS) < PROBE_SECONDS
        assert is_answered(scene.silo)
    assert scene.served.peak_bytes() - in_use < MEMORY_BYTES
    assert is_answered(scene.silo)
    assert scene.stored() == before


def test_pipelined_requests_use_bounded_memory(scene: Scene) -> None:
    request = KINDS["anonymous"](scene)
    in_use = scene.served.forget_peak()
    with _pipelines(scene, request, reads=False):
        assert _slowest_probe(scene, 1.0) < PROBE_SECONDS
    assert scene.served.peak_bytes() - in_use < MEMORY_BYTES // 2
