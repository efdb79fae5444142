"""API calls to a coordinator that fails, restarts, cuts connections or answers wrongly."""

from __future__ import annotations

import threading
import time
from http.server import BaseHTTPRequestHandler

import pytest

from client_agent.errors import AnswerUnreadable, CoordinatorRefused, DownloadDamaged, Stopped
from client_agent.transport import client as transport_client
from client_agent.transport.client import CoordinatorApi
from client_agent.transport.responses import NoOpenRound
from schemas.wire.digests import digest_of, to_field
from tests.scene.agents import limited_sleep
from tests.unit.client_agent.transport.scripted_server import HELLO, Answer, answering, api_for, status


def hang_up(request: BaseHTTPRequestHandler) -> None:
    request.close_connection = True


def part_of(body: bytes, *, begin: int = 0, sent: int | None = None, digest: str | None = None) -> Answer:
    """Announce the body from `begin`, and send it only up to `sent`."""

    def send(request: BaseHTTPRequestHandler) -> None:
        request.send_response(206 if begin else 200)
        request.send_header("ETag", '"tag"')
        request.send_header("Repr-Digest", to_field(digest or digest_of(body)))
        request.send_header("Content-Length", str(len(body) - begin))
        request.end_headers()
        request.wfile.write(body[begin:sent])
        request.close_connection = True

    return send


def test_restarting_coordinator_is_retried() -> None:
    slept: list[float] = []
    answers = (hang_up, status(503), status(502), status(200, HELLO))
    with answering(*answers) as (url, requests), api_for(url, slept) as api:
        assert api.hello().name == "test"
        assert len(requests) == 4
    assert len(slept) == 3
    assert all(0 <= wait <= 60 for wait in slept)


def test_retry_after_is_honoured() -> None:
    slept: list[float] = []
    answers = (status(429, Retry_After="17"), status(200, HELLO))
    with answering(*answers) as (url, _), api_for(url, slept) as api:
        api.hello()
    assert slept
    assert slept[0] >= 17


@pytest.mark.parametrize(("status_code", "method"), [(429, "GET"), (503, "GET"), (503, "PUT"), (507, "PUT")])
def test_retryable_status_is_retried_for_all_methods(status_code: int, method: str) -> None:
    slept: list[float] = []
    receipt = {
        "digest": "sha256:" + "0" * 64,
        "received_at": "2026-01-01T00:00:00Z",
        "bytes": 4,
        "round": 1,
        "client": "c",
        "clipped": False,
    }
    answers = (status(status_code, Retry_After="40"), status(200, receipt if method == "PUT" else HELLO))
    with answering(*answers) as (url, requests), api_for(url, slept) as api:
        if method == "PUT":
            api.push_update("fed", 1, b"body")
        else:
            api.hello()
        assert len(requests) == 2
    assert [wait >= 40 for wait in slept] == [True]


def test_refusal_is_not_retried_and_keeps_detail() -> None:
    problem = {"type": "urn:tessera:problem:round-closed", "title": "too late", "status": 409}
    with answering(status(409, problem)) as (url, requests), api_for(url, []) as api:
        with pytest.raises(CoordinatorRefused, match="too late") as caught:
            api.me()
        assert caught.value.slug == "round-closed"
        assert len(requests) == 1


def test_proxy_error_page_is_a_refusal_without_slug() -> None:
    with answering(status(403, "blocked by the proxy")) as (url, _), api_for(url, []) as api:
        with pytest.raises(CoordinatorRefused) as caught:
            api.me()
        assert (caught.value.status, caught.value.slug) == (403, "")


def test_answer_of_another_server_is_unreadable() -> None:
    trouble = pytest.raises(AnswerUnreadable, match="check that the URL is a coordinator")
    with answering(status(200, {"welcome": "to nginx"})) as (url, _), api_for(url, []) as api, trouble:
        api.hello()


def test_no_open_round_returns_the_retry_delay() -> None:
    with answering(status(204, Retry_After="7")) as (url, _), api_for(url, []) as api:
        assert api.current_round("fed") == NoOpenRound(7.0)


def test_long_poll_honours_a_zero_retry_delay() -> None:
    with answering(status(204, Retry_After="0")) as (url, _), api_for(url, []) as api:
        assert api.current_round("fed", wait_seconds=30) == NoOpenRound(0.0)


def test_stop_interrupts_a_long_poll() -> None:
    requests, answer = threading.Event(), threading.Event()

    def late(request: BaseHTTPRequestHandler) -> None:
        requests.set()
        assert request.headers["Prefer"] == "wait=30"
        answer.wait(20)
        status(204)(request)

    def sleep(seconds: float) -> None:
        if requests.is_set():
            raise Stopped

    with answering(late) as (url, _):
        api = CoordinatorApi(url, key=None, deadline_seconds=60, sleep=sleep)
        began = time.monotonic()
        with api, pytest.raises(Stopped):
            api.current_round("fed", wait_seconds=30)
        assert time.monotonic() - began < 5
        answer.set()


def test_long_poll_is_retried_after_a_restart() -> None:
    slept: list[float] = []
    with answering(hang_up, status(503), status(204, Retry_After="3")) as (url, requests):
        with api_for(url, slept) as api:
            assert api.current_round("fed", wait_seconds=30) == NoOpenRound(3.0)
        assert len(requests) == 3
    assert len([seconds for seconds in slept if seconds]) == 2


def test_broken_download_resumes_at_its_last_byte() -> None:
    body = bytes(range(256)) * 40
    answers = (part_of(body, sent=1000), part_of(body, begin=1000))
    with answering(*answers) as (url, requests), api_for(url, []) as api:
        assert api.weights("fed", 1).body == body
        assert [path.partition(" ")[2] for path in requests] == ["", "bytes=1000-"]


def test_restarted_download_discards_the_first_part() -> None:
    body = bytes(range(256)) * 40
    answers = (part_of(body, sent=1000), part_of(body))
    with answering(*answers) as (url, _), api_for(url, []) as api:
        assert api.weights("fed", 1).body == body


def test_damaged_download_is_refused() -> None:
    damaged = part_of(b"weights", digest=digest_of(b"other"))
    with answering(damaged) as (url, _), api_for(url, []) as api, pytest.raises(DownloadDamaged):
        api.weights("fed", 1)


def test_missing_pack_is_none() -> None:
    problem = {"type": "urn:tessera:problem:not-found", "title": "no pack", "status": 404}
    with answering(status(404, problem)) as (url, _), api_for(url, []) as api:
        assert api.pack("fed", "tiny-s-0") is None


def test_lasting_outage_is_logged(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(transport_client, "_QUIET_SECONDS", -1.0)
    api = CoordinatorApi("http://127.0.0.1:1", key=None, deadline_seconds=30.0, sleep=limited_sleep(1))
    with api, pytest.raises(Stopped):
        api.hello()
    (warning,) = [record.getMessage() for record in caplog.records if record.name == "tessera.agent"]
    assert warning.startswith("http://127.0.0.1:1")
    assert "refused); retrying for up to" in warning
