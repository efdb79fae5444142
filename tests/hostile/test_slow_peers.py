"""Row 14: who sends slowly, or nothing, is shown out; who waits for us, or is idle for a moment, is not."""

from __future__ import annotations

import re
import socket
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field

import pytest

from coordinator.limits.pace import GRACE_SECONDS, HEAD_SECONDS, IDLE_SECONDS
from tests.hostile.scene import Answer, Scene, connected, listen, request_bytes
from tests.signed import signed
from tests.taking_part import upload_headers

GET = b"GET /v1/hello HTTP/1.1\r\nHost: x\r\n"
POST = (
    b"POST /v1/enrolments HTTP/1.1\r\nHost: x\r\n"
    b"Content-Type: application/json\r\nContent-Length: 5000\r\n\r\n"
)
SLOW_PEERS = 200


@pytest.fixture(autouse=True)
def _on_one_database(backend: str) -> None:
    if backend != "sqlite":
        pytest.skip("time is the same on both databases")


def _waits(sent: bytes) -> Callable[[Scene], tuple[Answer, float]]:
    """Send something, then nothing; give what happens and after how many seconds."""

    def run(scene: Scene) -> tuple[Answer, float]:
        began = time.monotonic()
        with connected(scene.served, 60) as line:
            line.sendall(sent)
            return listen(line), time.monotonic() - began

    return run


def _pauses_in_its_update(scene: Scene) -> tuple[Answer, float]:
    body = scene.good()
    typed = {"Content-Type": upload_headers(body)["Content-Type"]}
    request = signed(scene.served, scene.silo, "PUT", scene.update, body, **typed)
    return _waits(request_bytes(request, body=body[:100]))(scene)


def _refused_and_goes_on(scene: Scene) -> tuple[Answer, float]:
    """Trickle the rest of a body whose refusal has long been sent."""
    began = time.monotonic()
    with connected(scene.served, 60) as line:
        line.sendall(b"POST /v1/tokens HTTP/1.1\r\nHost: x\r\nContent-Length: 5000\r\n\r\n")
        answer = listen(line)
        try:
            while True:
                line.sendall(b"x")
                time.sleep(1.0)
        except OSError:
            return answer, time.monotonic() - began


PAUSES: dict[str, tuple[Callable[[Scene], tuple[Answer, float]], int, str, float]] = {
    "amid its update": (_pauses_in_its_update, 408, "request-timeout", IDLE_SECONDS),
    "before its body": (_waits(POST), 408, "request-timeout", IDLE_SECONDS),
    "amid its head": (_waits(GET), 408, "request-timeout", HEAD_SECONDS),
    "before its head": (_waits(b""), 0, "", HEAD_SECONDS),
    "between two requests": (_waits(b"\r\n"), 0, "", HEAD_SECONDS),
}


def test_who_pauses_for_ten_seconds_is_shown_out(scene: Scene) -> None:
    before = scene.stored()
    with ThreadPoolExecutor(len(PAUSES)) as pool:
        asked = {name: pool.submit(run, scene) for name, (run, *_) in PAUSES.items()}
        for name, (_, status, problem, seconds) in PAUSES.items():
            answer, taken = asked[name].result()
            assert (answer.status, answer.problem, answer.is_closed) == (status, problem, True), name
            assert seconds - 0.5 < taken < seconds + 5, name
    assert scene.stored() == before
    assert scene.silo.http.get("/v1/me").status_code == 200


@pytest.mark.slow
def test_who_waits_for_us_or_is_idle_for_a_moment_is_left_alone(scene: Scene) -> None:
    """Longer than any deadline: a round that is waited for, and events that are followed."""
    fid = scene.delivered.federation_id
    with connected(scene.served, 60) as line, ThreadPoolExecutor(2) as pool:
        current = f"/v1/federations/{fid}/rounds/current"
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
    """Follow events for a while; say whether the stream still stands."""
    began = time.monotonic()
    path = f"/v1/federations/{scene.silo.federation_id}/events"
    with scene.served.admin.stream("GET", path, timeout=60) as stream:
        for _ in stream.iter_raw():
            if time.monotonic() - began > seconds:
                return True
    return False


@dataclass
class Tricklers:
    """Connections that send a byte a second, and how long each was borne with."""

    lines: list[socket.socket]
    borne: list[float] = field(default_factory=list)
    began: float = field(default_factory=time.monotonic)
    over: threading.Event = field(default_factory=threading.Event)

    def run(self) -> None:
        while self.lines and not self.over.wait(1.0):
            for line in [*self.lines]:
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
    """Half of them amid a head, half amid a body that nobody has to be known for."""
    with ExitStack() as stack:
        lines = [stack.enter_context(connected(scene.served, 60)) for _ in range(SLOW_PEERS)]
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


@pytest.mark.slow
def test_two_hundred_slow_peers_are_shown_out_and_starve_nobody(scene: Scene) -> None:
    _asked(scene)  # what the first requests cost is nobody's fault
    alone = _asked(scene)
    with _trickling(scene) as peers:
        beside = _asked(scene)
        while peers.lines and time.monotonic() - peers.began < 2 * GRACE_SECONDS:
            time.sleep(0.5)
        assert len(peers.borne) == SLOW_PEERS
    assert beside.cpu_seconds < 1.5 * alone.cpu_seconds
    assert beside.p99 < max(2 * alone.p99, 0.1)
    assert statistics.median_low(sorted(peers.borne)[: SLOW_PEERS // 2]) < HEAD_SECONDS + 5
    assert max(peers.borne) < GRACE_SECONDS + 10


@pytest.mark.slow
def test_a_body_that_trickles_on_behind_its_refusal_ends_too(scene: Scene) -> None:
    answer, taken = _refused_and_goes_on(scene)
    assert answer.problem == "auth-missing"
    assert taken < GRACE_SECONDS + 10


@dataclass(frozen=True)
class Asked:
    """What 400 good requests took: processor time of the server's in all, and the wait of the unluckiest."""

    cpu_seconds: float
    p99: float


def _asked(scene: Scene) -> Asked:
    taken, computed = [], scene.served.cpu_seconds()
    for _ in range(400):
        began = time.perf_counter()
        assert scene.silo.http.get("/v1/me").status_code == 200
        taken.append(time.perf_counter() - began)
    return Asked(scene.served.cpu_seconds() - computed, statistics.quantiles(taken, n=100)[98])
