"""Row 14: connections that send slowly or nothing are closed; waiting and idle ones are not."""

from __future__ import annotations

import re
import select
import socket
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import pytest

from coordinator.http.limits.body_deadline import GRACE_SECONDS, HEAD_SECONDS, IDLE_SECONDS
from tests.attacks.hostile.attack import Case, assert_refused
from tests.attacks.hostile.scene import Answer, Scene, is_answered, listen, media_type_headers, set_up
from tests.scene.coordinator_process import start_process
from tests.scene.signed_requests import request_bytes, signed

GET = b"GET /v1/hello HTTP/1.1\r\nHost: localhost\r\n"
POST = (
    b"POST /v1/enrolments HTTP/1.1\r\nHost: localhost\r\n"
    b"Content-Type: application/json\r\nContent-Length: 5000\r\n\r\n"
)
SLOW_PEERS = 200
PHASES = 20
TURNS = 5
MOST_TURNS = 12  # where the machine serves others, too: what starves somebody does so in most of them


@pytest.fixture(autouse=True)
def _on_one_database(backend: str) -> None:
    if backend != "sqlite":
        pytest.skip("time is the same on both databases")


def _waits(sent: bytes) -> Callable[[Scene], tuple[Answer, float]]:
    """Send something, then nothing; return what happens and after how many seconds."""

    def run(scene: Scene) -> tuple[Answer, float]:
        began = time.monotonic()
        with scene.served.line(60) as line:
            line.sendall(sent)
            return listen(line), time.monotonic() - began

    return run


def _pauses_in_its_update(scene: Scene) -> tuple[Answer, float]:
    body = scene.good()
    request = signed(scene.served, scene.silo, "PUT", scene.update, body, **media_type_headers(body))
    return _waits(request_bytes(request, body=body[:100]))(scene)


def _refused_and_goes_on(scene: Scene) -> tuple[Answer, float]:
    """Send the rest of a refused body slowly."""
    began = time.monotonic()
    with scene.served.line(60) as line:
        line.sendall(b"POST /v1/tokens HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5000\r\n\r\n")
        answer = listen(line)
        try:
            while True:
                line.sendall(b"x")
                time.sleep(1.0)
        except OSError:
            return answer, time.monotonic() - began


def _trickles(scene: Scene, request: bytes) -> Answer:
    """Send the rest of a request at a byte per second, until there is an answer."""
    with scene.served.line(60) as line:
        line.sendall(request)
        while not select.select([line], [], [], 1.0)[0]:
            line.sendall(b"x")
        return listen(line)


def _trickling_bodies(scene: Scene) -> Iterator[Answer]:
    """Send an update and a JSON body concurrently, at a byte per second."""
    update = signed(
        scene.served, scene.silo, "PUT", scene.update, scene.good(), **media_type_headers(scene.good())
    )
    bodies = [request_bytes(update, body=b""), POST]
    with ThreadPoolExecutor(len(bodies)) as pool:
        began = time.monotonic()
        yield from pool.map(partial(_trickles, scene), bodies)
        assert time.monotonic() - began < GRACE_SECONDS + 10


PAUSES: dict[str, tuple[Callable[[Scene], tuple[Answer, float]], int, str, float]] = {
    "amid its update": (_pauses_in_its_update, 408, "request-timeout", IDLE_SECONDS),
    "before its body": (_waits(POST), 408, "request-timeout", IDLE_SECONDS),
    "amid its head": (_waits(GET), 408, "request-timeout", HEAD_SECONDS),
    "before its head": (_waits(b""), 0, "", HEAD_SECONDS),
    "between two requests": (_waits(b"\r\n"), 0, "", HEAD_SECONDS),
}


@pytest.mark.slow
def test_a_peer_that_pauses_is_disconnected(scene: Scene) -> None:
    before = scene.stored()
    with ThreadPoolExecutor(len(PAUSES)) as pool:
        pending = {name: pool.submit(run, scene) for name, (run, *_) in PAUSES.items()}
        for name, (_, status, problem, seconds) in PAUSES.items():
            answer, waited = pending[name].result()
            assert (answer.status, answer.problem, answer.is_closed) == (status, problem, True), name
            assert seconds - 0.5 < waited < seconds + 5, name
    assert scene.stored() == before
    assert is_answered(scene.silo)


@pytest.fixture
def calm(fresh_database: Callable[[str], str], tmp_path: Path) -> Iterator[Scene]:
    """A coordinator without background work, so that all processor time is that of requests."""
    served = start_process(fresh_database("sqlite"), tmp_path, tick_seconds=3600)
    try:
        yield set_up(served)
    finally:
        served.stop()


@pytest.mark.long
def test_a_trickling_body_times_out_after_its_grace(calm: Scene) -> None:
    """Row 14."""
    assert_refused(calm, Case(14, "a byte a second", _trickling_bodies, 408, "request-timeout", closes=True))


@pytest.mark.long
def test_waiting_and_idle_connections_stay_open(scene: Scene) -> None:
    """Longer than any deadline: a round that is waited for, and events that are followed."""
    federation_id = scene.delivered.federation_id
    with scene.served.line(60) as line, ThreadPoolExecutor(2) as pool:
        current = f"/v1/federations/{federation_id}/rounds/current"
        waiting = pool.submit(scene.delivered.http.get, current, headers={"Prefer": "wait=14"}, timeout=60)
        events = pool.submit(_follow, scene, 14.0)
        for _ in range(3):
            line.sendall(GET + b"\r\n")
            assert _whole_answer(line).startswith(b"HTTP/1.1 200 OK")
            time.sleep(3.5)
        assert waiting.result().status_code == 204
        assert events.result()


def _whole_answer(line: socket.socket) -> bytes:
    """Read one answer to the end of its body, however it is cut."""
    answer = b""
    while True:
        head, ended, body = answer.partition(b"\r\n\r\n")
        length = re.search(rb"content-length: (\d+)", head.lower())
        if ended and length is not None and len(body) >= int(length[1]):
            return answer
        piece = line.recv(65536)
        assert piece, "it was cut off"
        answer += piece


def _follow(scene: Scene, seconds: float) -> bool:
    """Follow events for a while; return whether the stream is still open."""
    began = time.monotonic()
    path = f"/v1/federations/{scene.silo.federation_id}/events"
    with scene.served.admin.stream("GET", path, timeout=60) as stream:
        for _ in stream.iter_raw():
            if time.monotonic() - began > seconds:
                return True
    return False


@dataclass
class Tricklers:
    """Staggered connections that send a byte per second, and the seconds until each was closed."""

    lines: list[socket.socket]
    borne: list[float] = field(default_factory=list)
    began: float = field(default_factory=time.monotonic)
    over: threading.Event = field(default_factory=threading.Event)

    def run(self) -> None:
        phase = 0
        while self.lines and not self.over.wait(1.0 / PHASES):
            phase = (phase + 1) % PHASES
            for line in self.lines[phase::PHASES]:
                try:
                    line.sendall(b"x")
                    line.setblocking(False)
                    gone = line.recv(65536) == b""
                except BlockingIOError:
                    gone = False
                except OSError:
                    gone = True
                if gone:
                    self.lines.remove(line)
                    self.borne.append(time.monotonic() - self.began)


@contextmanager
def _trickling(scene: Scene) -> Iterator[Tricklers]:
    """Yield connections: half of them within a head, half within the body of an anonymous request."""
    with ExitStack() as stack:
        lines = [stack.enter_context(scene.served.line(60)) for _ in range(SLOW_PEERS)]
        for place, line in enumerate(lines):
            line.sendall(POST if place % 2 else GET + b"A: ")
        peers = Tricklers(lines)
        thread = threading.Thread(target=peers.run)
        thread.start()
        try:
            yield peers
        finally:
            peers.over.set()
            thread.join()


@pytest.mark.long
def test_slow_peers_do_not_delay_good_requests(
    scene: Scene, record_property: Callable[[str, object], None]
) -> None:
    """Who behaves waits less than twice as long: both are measured in turns, for a machine's pace changes."""
    _measure_requests(scene)  # what the first requests cost is nobody's fault
    alone, beside = [], []
    while len(alone) < TURNS or (_ratio_of_waits(beside, alone) >= 2 and len(alone) < MOST_TURNS):
        alone.append(_measure_requests(scene))
        with _trickling(scene):
            beside.append(_measure_requests(scene))
        time.sleep(0.5)  # those who were slow are forgotten
    summary = f"p99 beside {SLOW_PEERS} slow peers {_ratio_of_waits(beside, alone):.2f} times that alone"
    record_property(
        "summary", f"{summary} ({_largest_wait(beside) * 1000:.1f} ms, {_largest_wait(alone) * 1000:.1f} ms)"
    )
    assert _ratio_of_waits(beside, alone) < 2
    assert sum(load.cpu_seconds for load in beside) < 1.5 * sum(load.cpu_seconds for load in alone)


def _largest_wait(turns: list[RequestLoad]) -> float:
    return statistics.median(turn.p99 for turn in turns)


def _ratio_of_waits(beside: list[RequestLoad], alone: list[RequestLoad]) -> float:
    return _largest_wait(beside) / _largest_wait(alone)


@pytest.mark.long
def test_slow_peers_are_disconnected(scene: Scene) -> None:
    with _trickling(scene) as peers:
        while peers.lines and time.monotonic() - peers.began < 2 * GRACE_SECONDS:
            time.sleep(0.5)
        assert len(peers.borne) == SLOW_PEERS
    assert statistics.median_low(sorted(peers.borne)[: SLOW_PEERS // 2]) < HEAD_SECONDS + 5
    assert max(peers.borne) < GRACE_SECONDS + 10


@pytest.mark.long
def test_a_trickling_body_after_a_refusal_ends(scene: Scene) -> None:
    answer, seconds = _refused_and_goes_on(scene)
    assert answer.problem == "auth-missing"
    assert seconds < GRACE_SECONDS + 10


@dataclass(frozen=True)
class RequestLoad:
    """Load of 400 good requests: processor seconds of the server, and the 99th percentile of the waits."""

    cpu_seconds: float
    p99: float


def _measure_requests(scene: Scene) -> RequestLoad:
    seconds, computed = [], scene.served.cpu_seconds()
    for _ in range(400):
        began = time.perf_counter()
        assert is_answered(scene.silo)
        seconds.append(time.perf_counter() - began)
    return RequestLoad(scene.served.cpu_seconds() - computed, statistics.quantiles(seconds, n=100)[98])
