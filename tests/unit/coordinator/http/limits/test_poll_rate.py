"""Limits of polls: a reasonable rate is never refused, and refusals are spaced."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import anyio
import pytest
from fastapi import Request
from starlette.types import Message

from coordinator.errors import RateLimited
from coordinator.http.limits import poll_rate
from coordinator.http.limits.poll_rate import (
    BURST,
    MAX_DELAY_SECONDS,
    REFUSAL_SECONDS,
    PollRate,
    PollRefused,
    answered_in_turn,
)
from coordinator.secure_sum.routes import SUM_POLLS_AT_ONCE
from tests.scene.coordinator import Served, slug
from tests.scene.waiting import wait_until

POLLS = 60


def test_polls_allow_a_burst_then_one_per_second() -> None:
    now = [100.0]
    polls = PollRate(1.0, clock=lambda: now[0])
    for _ in range(BURST):
        polls.take("a")
    with pytest.raises(RateLimited) as limited:
        polls.take("a")
    assert 1 <= int(limited.value.fields()["Retry-After"]) <= 6
    polls.take("b")
    for _ in range(100):
        now[0] += 1.0
        polls.take("a")
    with pytest.raises(RateLimited):
        polls.take("a")
    now[0] += 3600.0
    for _ in range(BURST):
        polls.take("a")
    with pytest.raises(RateLimited):
        polls.take("a")


def test_refused_polls_do_not_extend_the_wait() -> None:
    now = [0.0]
    polls = PollRate(1.0, clock=lambda: now[0])
    for _ in range(BURST):
        polls.take("a")
    for _ in range(50):
        with pytest.raises(RateLimited):
            polls.take("a")
    now[0] = 1.0
    polls.take("a")


def test_refused_polls_of_a_client_are_spaced() -> None:
    now = [0.0]
    polls = PollRate(1.0, clock=lambda: now[0], burst=1)
    for client_id in "ab":
        polls.take(client_id)
    delays = [_delay(polls, "a") for _ in range(POLLS)]
    assert delays == pytest.approx([REFUSAL_SECONDS * i for i in range(POLLS)])
    assert _delay(polls, "b") == 0.0
    for _ in range(1000):
        assert _delay(polls, "a") <= MAX_DELAY_SECONDS
    now[0] = 1.0
    polls.take("a")  # an allowed poll is not delayed by refusals
    now[0] += MAX_DELAY_SECONDS
    polls.take("a")
    assert _delay(polls, "a") == 0.0


def _delay(polls: PollRate, client_id: str) -> float:
    with pytest.raises(PollRefused) as refused:
        polls.take(client_id)
    return refused.value.delay


@pytest.mark.parametrize(
    ("path", "burst"), [("rounds/current", BURST), ("rounds/1/secure-sum", SUM_POLLS_AT_ONCE)]
)
def test_refused_polls_wait_without_a_thread_each(
    serve: Callable[..., Served],
    fresh_database: Callable[[str], str],
    monkeypatch: pytest.MonkeyPatch,
    path: str,
    burst: int,
) -> None:
    monkeypatch.setattr(poll_rate, "REFUSAL_SECONDS", MAX_DELAY_SECONDS)
    refused: list[float] = []
    monkeypatch.setattr(poll_rate, "PollRefused", _recorded(refused))
    served = serve(fresh_database("sqlite"), polls_per_second=1e-6)
    federation_id = served.federation()
    silo, peer = (served.enrol(federation_id, name) for name in "ab")
    path = f"/v1/federations/{federation_id}/{path}"
    assert 429 not in [silo.http.get(path).status_code for _ in range(burst)]
    assert slug(silo.http.get(path)) == "rate-limited"
    with ThreadPoolExecutor(POLLS) as pool:
        polls = [pool.submit(silo.http.get, path) for _ in range(POLLS)]
        wait_until(lambda: len(refused) == 1 + POLLS)
        assert served.http().get("/healthz").status_code == 200
        assert peer.http.get(path).status_code != 429  # from a thread of which there are fewer than polls
        assert not any(poll.done() for poll in polls)
        served._server.handle_exit(15, None)
        assert {slug(poll.result(timeout=20)) for poll in polls} == {"rate-limited"}


def _recorded(refused: list[float]) -> type[PollRefused]:
    class Recorded(PollRefused):
        def __init__(self, seconds: float, delay: float) -> None:
            super().__init__(seconds, delay)
            refused.append(delay)

    return Recorded


def test_a_refused_poll_ends_when_its_client_disconnects() -> None:
    messages: list[Message] = [{"type": "http.request"}, {"type": "http.disconnect"}]

    async def receive() -> Message:
        return messages.pop(0)

    async def refuse() -> None:
        state = SimpleNamespace(stopping=threading.Event())
        request = Request({"type": "http", "app": SimpleNamespace(state=state)}, receive)
        with anyio.fail_after(20), pytest.raises(PollRefused):
            async with answered_in_turn(request):
                raise PollRefused(1.0, delay=1000.0)

    anyio.run(refuse)
    assert not messages


def test_reads_of_me_are_limited_per_client(
    serve: Callable[..., Served], fresh_database: Callable[[str], str]
) -> None:
    served = serve(fresh_database("sqlite"), polls_per_second=1e-6)
    federation_id = served.federation()
    silo, another = served.enrol(federation_id, "a"), served.enrol(federation_id, "b")
    answers = [silo.http.get("/v1/me") for _ in range(BURST + 1)]
    assert [answer.status_code for answer in answers] == [200] * BURST + [429]
    assert slug(answers[-1]) == "rate-limited"
    assert int(answers[-1].headers["Retry-After"]) >= 1
    assert another.http.get("/v1/me").status_code == 200
    assert silo.http.get(f"/v1/federations/{federation_id}/rounds/current").status_code == 204
