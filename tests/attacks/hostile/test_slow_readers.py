"""Slow readers and many connections: bounded memory, service for others, and disconnection."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np
import pytest

from coordinator.http.limits.body_deadline import ANSWER_BYTES_PER_SECOND, GRACE_SECONDS, IDLE_SECONDS
from schemas.wire.envelope import MEDIA_TYPE
from tests.attacks.hostile.attack import MEMORY_BYTES
from tests.attacks.hostile.scene import is_answered
from tests.scene.coordinator import Served, Silo
from tests.scene.coordinator_process import ServedProcess, start_process
from tests.scene.rounds import deliver, join, layout_for, plan, running, scored, url, wait_for
from tests.scene.signed_requests import request_bytes, signed

READERS = 100
_WINDOW = 4096
_ESTABLISHED = 1  # of tcp(7), as TCP_INFO begins
GET = b"GET /v1/hello HTTP/1.1\r\nHost: localhost\r\n\r\n"


@pytest.fixture
def large(
    fresh_database: Callable[[str], str], tmp_path: Path, backend: str
) -> Iterator[tuple[ServedProcess, list[Silo]]]:
    """Two clients whose weights are as large as they may be."""
    served = start_process(fresh_database(backend), tmp_path)
    try:
        adapter = {"rank": 1024, "blocks": 4, "roles": ["q", "k", "v"]}
        _, silos = running(served, **plan(adapter=adapter, rounds={"min_clients": 2}))
        for silo in silos:
            join(silo, 1)
        yield served, silos
    finally:
        served.stop()


@contextmanager
def reading_nothing(served: Served, request: bytes) -> Iterator[socket.socket]:
    """Send a request, and do not read the answer."""
    place = urlsplit(served.url)
    with closing(socket.socket()) as line:
        line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _WINDOW)
        line.settimeout(30)
        line.connect((place.hostname, place.port))
        line.sendall(request)
        yield line


def is_closed(line: socket.socket) -> bool:
    """Read a byte, if there is one; return whether the connection is closed."""
    with suppress(BlockingIOError, ConnectionResetError):
        line.recv(1, socket.MSG_DONTWAIT)
    return line.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0] != _ESTABLISHED


@pytest.mark.long
def test_slow_readers_use_little_memory_and_are_disconnected(
    large: tuple[ServedProcess, list[Silo]],
) -> None:
    served, (slow, good) = large
    served.http().get("/v1/hello")
    weights = request_bytes(signed(served, slow, "GET", url(slow, 1, "/weights")))
    before, threads = served.forget_peak(), served.process.num_threads()
    began = time.monotonic()
    with ExitStack() as stack:
        lines = [stack.enter_context(reading_nothing(served, weights)) for _ in range(READERS)]
        while (left := [line for line in lines if not is_closed(line)]) and time.monotonic() - began < 60:
            lines = left
            assert is_answered(good)
            assert good.http.put(url(good, 1, "/scores"), json=scored({"loss": 1.0})).status_code == 204, (
                "it writes"
            )
            time.sleep(1.0)
        assert not left, "they are borne with for ever"
    assert time.monotonic() - began < 2 * (IDLE_SECONDS + GRACE_SECONDS)
    assert served.peak_bytes() - before < MEMORY_BYTES
    assert served.process.num_threads() <= threads + 40, "the pool of threads is bounded"
    assert len(good.http.get(url(good, 1, "/weights")).content) > 48 * 2**20


@pytest.mark.long
def test_slow_readers_of_coded_weights_use_little_memory(
    fresh_database: Callable[[str], str], tmp_path: Path, backend: str
) -> None:
    served = start_process(fresh_database(backend), tmp_path)
    try:
        federation_id, silos = running(served, **plan(adapter={"rank": 512, "blocks": 4, "roles": ["q"]}))
        random = np.random.default_rng(0)
        shapes = layout_for(silos[0]).items()
        for silo in silos:
            deliver(silo, 1, {name: random.normal(size=shape).astype(np.float32) for name, shape in shapes})
        wait_for(served, federation_id, 1, "published")
        join(silos[0], 2)
        asking = {"Accept": f"{MEDIA_TYPE};recipe=int8_own_last"}
        answer = silos[0].http.get(url(silos[0], 2, "/weights"), headers=asking)
        assert int(answer.headers["content-length"]) > 10**6
        path = url(silos[0], 2, "/weights")
        requests = [request_bytes(signed(served, silos[0], "GET", path, **asking)) for _ in range(READERS)]
        before = served.forget_peak()
        with ExitStack() as stack:
            for request in requests:
                line = stack.enter_context(reading_nothing(served, request))
                assert line.recv(15) == b"HTTP/1.1 200 OK"
            time.sleep(1.0)
            assert served.peak_bytes() - before < MEMORY_BYTES // 2
    finally:
        served.stop()


@pytest.mark.long
def test_a_reader_above_the_minimum_rate_completes(large: tuple[ServedProcess, list[Silo]]) -> None:
    served, (silo, _) = large
    request = request_bytes(signed(served, silo, "GET", url(silo, 1, "/weights")))
    received = 0
    with served.line(60) as line:
        line.sendall(request)
        while received < 48 * 2**20:
            piece = line.recv(2**20)
            assert piece, "cut off, at twenty times the pace"
            received += len(piece)
            time.sleep(len(piece) / (40 * ANSWER_BYTES_PER_SECOND))


def test_connections_beyond_the_limit_are_answered_503(
    fresh_database: Callable[[str], str], serve: Callable[..., Served], backend: str
) -> None:
    if backend != "sqlite":
        pytest.skip("connections are the same on both databases")
    served = serve(fresh_database("sqlite"), connections=20)
    with ExitStack() as stack:
        lines = [stack.enter_context(served.line()) for _ in range(30)]
        for line in lines:
            line.sendall(GET)
        answers = [line.recv(65536) for line in lines]
        busy = [answer for answer in answers if answer.startswith(b"HTTP/1.1 503 ")]
        assert all(b"retry-after: " in response and b"problem:busy" in response for response in busy)
        assert 10 <= len(busy) <= 12, "a connection of the test's own may be open still"
        assert all(response.startswith(b"HTTP/1.1 200 ") for response in answers if response not in busy)
    time.sleep(0.5)
    assert served.http().get("/v1/hello").status_code == 200
