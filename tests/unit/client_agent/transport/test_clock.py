"""Clock correction: only a time signed by the coordinator is accepted."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from itertools import chain, count, repeat
from typing import Any

import httpx
import pytest

from client_agent.errors import CoordinatorRefused, RequestTooSlow
from client_agent.transport.client import CoordinatorApi
from client_agent.transport.request_signing import SignedRequests
from tests.scene.coordinator import Served, Silo

LATER = 1_893_456_000  # 2030-01-01T00:00:00Z
DAY = 86_400.0


@pytest.fixture
def silo(served: Served) -> Silo:
    return served.enrol(served.federation(), "aster")


class RecordedAnswers(httpx.HTTPTransport):
    """Records the requests; `change(request, answer)` may replace an answer."""

    def __init__(self, change: Callable[[httpx.Request, httpx.Response], httpx.Response | None]) -> None:
        super().__init__()
        self.sent: list[tuple[str, int]] = []
        self._change = change

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        signed = re.search("created=([0-9]+)", request.headers.get("Signature-Input", ""))
        self.sent.append((request.url.path, int(signed.group(1)) if signed else 0))
        answer = super().handle_request(request)
        answer.read()
        return self._change(request, answer) or answer


def skewed(**members: Any) -> httpx.Response:
    problem = {"type": "urn:tessera:problem:clock-skew", "title": "x", "status": 401}
    return httpx.Response(401, json=problem | members)


def signing(
    served: Served,
    silo: Silo,
    change: Callable[[httpx.Request, httpx.Response], httpx.Response | None] = lambda *_: None,
    clock: Callable[[], float] = time.time,
) -> tuple[httpx.Client, RecordedAnswers]:
    between = RecordedAnswers(change)
    server_key = served.http().get("/v1/hello").json()["signing_key"]
    auth = SignedRequests(silo.key, server_key, clock=clock)
    return httpx.Client(base_url=served.url, auth=auth, transport=between), between


@pytest.mark.parametrize("wrong_by", [-DAY, 3600.0])
def test_wrong_clock_is_corrected_once(served: Served, silo: Silo, wrong_by: float) -> None:
    http, between = signing(served, silo, clock=lambda: time.time() + wrong_by)
    with http:
        assert http.get("/v1/me").status_code == 200
        assert [path for path, _ in between.sent] == ["/v1/me", "/v1/hello", "/v1/me"]
        assert http.get("/v1/me").status_code == 200
    assert len(between.sent) == 4
    assert all(abs(created - time.time()) < 30 for _, created in between.sent[2:])


def test_clock_set_during_correction_is_corrected_again(served: Served, silo: Silo) -> None:
    wrong_by = chain([-DAY] * 3, repeat(DAY))  # sign, send, receive; then sign again
    http, between = signing(served, silo, clock=lambda: time.time() + next(wrong_by))
    with http:
        assert http.get("/v1/me").status_code == 200
    assert [path for path, _ in between.sent] == ["/v1/me", "/v1/hello", "/v1/me", "/v1/hello", "/v1/me"]


def test_ever_changing_clock_ends_the_corrections(served: Served, silo: Silo) -> None:
    wrong_by = (DAY * (number // 3) for number in count(3))
    http, between = signing(served, silo, clock=lambda: time.time() + next(wrong_by))
    with http:
        assert http.get("/v1/me").status_code == 401
    assert [path for path, _ in between.sent].count("/v1/hello") == 3


def test_proxy_cannot_obtain_signatures_for_later_times(served: Served, silo: Silo) -> None:
    """A proxy's time is unsigned, and a replayed or altered greeting is refused."""
    old = served.http().get("/v1/hello", params={"challenge": "c" * 32}).text

    greetings: dict[str, Callable[[httpx.Response], httpx.Response | None]] = {
        "altered": lambda real: httpx.Response(
            200, json=real.json() | {"server_time": "2030-01-01T00:00:00.000000Z"}
        ),
        "old": lambda _: httpx.Response(200, text=old),
        "refused": lambda _: skewed(server_time="2030-01-01T00:00:00Z"),
        "none": lambda _: httpx.Response(502, text="bad gateway"),
    }
    for greeting in greetings.values():

        def lie(
            request: httpx.Request,
            answer: httpx.Response,
            greet: Callable[[httpx.Response], httpx.Response | None] = greeting,
        ) -> httpx.Response | None:
            is_greeting = request.url.path == "/v1/hello"
            return greet(answer) if is_greeting else skewed(server_time="2030-01-01T00:00:00Z")

        http, between = signing(served, silo, lie)
        with http, pytest.raises(CoordinatorRefused, match="clock-skew"):
            http.get("/v1/me")
        assert [path for path, _ in between.sent] == ["/v1/me", "/v1/hello"]
        assert all(created < LATER for _, created in between.sent)


def test_delayed_greeting_does_not_correct_the_clock(served: Served, silo: Silo) -> None:
    moments = iter([0.0, 0.0, 61.0])
    http, between = signing(served, silo, clock=lambda: time.time() - DAY + next(moments))
    with http, pytest.raises(CoordinatorRefused, match="clock-skew"):
        http.get("/v1/me")
    assert len(between.sent) == 2


def test_skew_with_correct_clock_is_reported_as_slow(served: Served, silo: Silo) -> None:
    """A proxy may buffer an upload until it is complete."""

    def late(request: httpx.Request, _: httpx.Response) -> httpx.Response | None:
        return skewed() if request.method == "PUT" else None

    between = RecordedAnswers(late)
    server_key = served.http().get("/v1/hello").json()["signing_key"]
    with (
        CoordinatorApi(
            served.url, key=silo.key, server_key=server_key, deadline_seconds=0, transport=between
        ) as api,
        pytest.raises(RequestTooSlow, match="proxy_request_buffering off"),
    ):
        api.push_update(silo.federation_id, 1, b"an update")
    assert [path.rpartition("/")[2] for path, _ in between.sent] == ["update", "hello"]


def test_time_is_not_accepted_without_the_key(served: Served, silo: Silo) -> None:
    auth = SignedRequests(silo.key, clock=lambda: time.time() - DAY)
    with httpx.Client(base_url=served.url, auth=auth) as http:
        answers = [http.get("/v1/me").status_code for _ in range(2)]
    assert answers == [401, 401]
