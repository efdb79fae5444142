"""Deadlines of calls to a slow or absent coordinator."""

from __future__ import annotations

import time
from contextlib import suppress
from http.server import BaseHTTPRequestHandler

import pytest

from client_agent.errors import CoordinatorRefused, CoordinatorUnreachable
from client_agent.transport import client as transport_client
from client_agent.transport import timeouts
from schemas.wire.digests import digest_of, to_field
from tests.unit.client_agent.transport.scripted_server import HELLO, answering, api_for, status


@pytest.fixture(autouse=True)
def single_attempt(monkeypatch: pytest.MonkeyPatch) -> None:
    """End calls after their first try."""
    monkeypatch.setattr(transport_client, "_ONE_TRY_SECONDS", 0.0)


@pytest.mark.slow
def test_trickling_response_body_ends_at_the_deadline() -> None:
    def trickle(request: BaseHTTPRequestHandler) -> None:
        request.send_response(200)
        request.send_header("Content-Length", "100000")
        request.end_headers()
        with suppress(OSError):
            for _ in range(1000):
                request.wfile.write(b"x")
                time.sleep(0.05)

    began = time.monotonic()
    with answering(trickle) as (url, _), api_for(url, [], deadline=1.0) as api:
        for call in (api.hello, lambda: api.weights("fed", 1)):
            with pytest.raises(CoordinatorUnreachable, match="deadline of the whole call"):
                call()
    assert 2 <= time.monotonic() - began < 20


@pytest.mark.slow
def test_trickling_response_head_ends_at_the_deadline() -> None:
    def trickle(request: BaseHTTPRequestHandler) -> None:
        request.wfile.write(b"HTTP/1.1 200 OK\r\nX: ")
        with suppress(OSError):
            for _ in range(400):
                request.wfile.write(b"x")
                time.sleep(0.05)
        request.close_connection = True

    began = time.monotonic()
    with answering(status(200, HELLO), trickle) as (url, _), api_for(url, [], deadline=1.0) as api:
        api.hello()  # the connection is used again, or is new: both end
        for call in (api.hello, lambda: api.weights("fed", 1), lambda: api.push_update("fed", 1, b"body")):
            with pytest.raises(CoordinatorUnreachable, match="deadline of the whole call"):
                call()
    assert 3 <= time.monotonic() - began < 15


@pytest.mark.slow
def test_large_download_extends_deadline_at_minimum_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    body = bytes(100_000)

    def pour(request: BaseHTTPRequestHandler) -> None:
        request.send_response(200)
        request.send_header("Repr-Digest", to_field(digest_of(body)))
        request.send_header("Content-Length", str(len(body)))
        request.end_headers()
        with suppress(OSError):
            for at in range(0, len(body), 2000):  # about 2 s in all
                request.wfile.write(body[at : at + 2000])
                time.sleep(0.04)

    with answering(pour) as (url, _), api_for(url, [], deadline=0.5) as api:
        monkeypatch.setattr(timeouts, "FLOOR_BYTES_PER_SECOND", 5_000)
        assert api.weights("fed", 1).body == body
        monkeypatch.setattr(timeouts, "FLOOR_BYTES_PER_SECOND", 500_000)
        with pytest.raises(CoordinatorUnreachable, match="deadline of the whole call"):
            api.weights("fed", 1)


def test_trickling_upload_ends_at_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timeouts, "FLOOR_BYTES_PER_SECOND", 10**9)

    def sip(request: BaseHTTPRequestHandler) -> None:
        with suppress(OSError):
            while request.rfile.read(20_000):
                time.sleep(0.05)

    began = time.monotonic()
    trouble = pytest.raises(CoordinatorUnreachable, match="deadline of the whole call")
    with answering(sip) as (url, _), api_for(url, [], deadline=1.0) as api, trouble:
        api.push_update("fed", 1, bytes(64 * 2**20))
    assert 1 <= time.monotonic() - began < 20


def test_rate_limit_beyond_deadline_keeps_its_detail() -> None:
    problem = {
        "type": "urn:tessera:problem:rate-limited",
        "title": "too many",
        "status": 429,
        "detail": "ten keys a day",
    }
    with answering(status(429, problem, Retry_After="80000")) as (url, requests), api_for(url, []) as api:
        with pytest.raises(CoordinatorRefused, match="ten keys a day"):
            api.me()
        assert len(requests) == 1


def test_absent_coordinator_is_unreachable_after_the_deadline() -> None:
    slept: list[float] = []
    with answering(status(200, HELLO)) as (url, _):
        pass
    with (
        api_for(url, slept, deadline=0.0) as api,
        pytest.raises(CoordinatorUnreachable, match="did not answer"),
    ):
        api.hello()
