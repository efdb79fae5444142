"""Deadlines of request bodies, on a clock that is set by hand."""

from __future__ import annotations

from collections.abc import Sequence

import anyio
import pytest
from starlette.types import Message, Receive, Scope, Send

from coordinator.errors import RequestTimeout
from coordinator.http.limits import body_deadline
from coordinator.http.limits.body_deadline import GRACE_SECONDS, BodyDeadline, body_seconds

MB = 10**6
PIECE = bytes(MB)


def receive_body(
    monkeypatch: pytest.MonkeyPatch, waits: Sequence[float], *, announced: int | None, busy: float = 0.0
) -> int:
    """Receive pieces of a megabyte, each after so many seconds; return their bytes. `busy` = our own time."""
    now = [0.0]
    monkeypatch.setattr("coordinator.http.limits.body_deadline.time.monotonic", lambda: now[0])
    left = list(waits)

    async def receive() -> Message:
        now[0] += left.pop(0)
        return {"type": "http.request", "body": PIECE, "more_body": bool(left)}

    total = 0

    async def application(_: Scope, receive: Receive, __: Send) -> None:
        nonlocal total
        while True:
            message = await receive()
            total += len(message["body"])
            now[0] += busy
            if not message["more_body"]:
                return

    headers = [(b"content-length", str(announced).encode())] if announced is not None else []
    scope: Scope = {"type": "http", "headers": headers}

    async def send(_: Message) -> None: ...

    anyio.run(BodyDeadline(application, MB), scope, receive, send)
    return total


def test_body_deadlines_grow_by_a_second_per_megabyte() -> None:
    assert body_seconds(0, MB) == GRACE_SECONDS
    assert body_seconds(64 * MB, MB) == GRACE_SECONDS + 64
    assert body_seconds(1024 * MB, MB) == GRACE_SECONDS + 1024


@pytest.mark.parametrize("announced", [60 * MB, None])
def test_a_megabyte_a_second_is_fast_enough(monkeypatch: pytest.MonkeyPatch, announced: int | None) -> None:
    assert receive_body(monkeypatch, [1.0] * 60, announced=announced) == 60 * MB


@pytest.mark.parametrize("announced", [60 * MB, None])
def test_half_a_megabyte_a_second_is_too_slow(monkeypatch: pytest.MonkeyPatch, announced: int | None) -> None:
    with pytest.raises(RequestTimeout):
        receive_body(monkeypatch, [2.0] * 60, announced=announced)


def test_the_servers_own_time_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    assert receive_body(monkeypatch, [0.5] * 10, announced=10 * MB, busy=60.0) == 10 * MB


def test_an_idle_body_times_out_before_its_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(body_deadline, "IDLE_SECONDS", 0.05)

    async def never() -> Message:
        await anyio.sleep_forever()
        raise AssertionError

    async def application(_: Scope, receive: Receive, __: Send) -> None:
        await receive()

    async def send(_: Message) -> None: ...

    scope: Scope = {"type": "http", "headers": [(b"content-length", b"1000")]}
    with pytest.raises(RequestTimeout):
        anyio.run(BodyDeadline(application, MB), scope, never, send)
