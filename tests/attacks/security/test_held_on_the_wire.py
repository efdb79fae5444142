"""Refusal of ambiguous requests and of requests in other protocols."""

from __future__ import annotations

import re

import httpx
import pytest

from tests.scene.coordinator import Served, coordinator_fixture

POST = "POST /v1/enrolments HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
GET = "GET /v1/hello HTTP/1.1\r\nHost: {host}\r\n"
CHUNKED = POST + "Transfer-Encoding: chunked\r\n\r\n"
HIDDEN = GET + "X-Hidden: 1\r\n\r\n"
"""What follows a request that is read in two ways: whoever answers it has been deceived."""


served = coordinator_fixture("sqlite", scope="module")


def exchange(served: Served, text: str) -> str:
    """Send raw text; return the received bytes until the connection is closed or quiet."""
    host = httpx.URL(served.url).netloc.decode()
    received = b""
    with served.line(15) as line:
        try:
            line.sendall(text.replace("{host}", host).encode("latin-1"))
            while piece := line.recv(65536):
                received += piece
                line.settimeout(0.5)
        except (ConnectionResetError, BrokenPipeError, TimeoutError):
            pass  # closed with bytes unread, or quiet
    return received.decode("latin-1")


AMBIGUOUS = {
    "a length with a sign": POST + "Content-Length: +2\r\n\r\n{}",
    "a length in sixteens": POST + "Content-Length: 0x2\r\n\r\n{}",
    "a list of lengths": POST + "Content-Length: 2, 2\r\n\r\n{}",
    "a length beyond 64 bits": POST + f"Content-Length: {2**64 + 2}\r\n\r\n{{}}",
    "a length of 5,000 digits": POST + f"Content-Length: {'9' * 5000}\r\n\r\n{{}}",
    "two equal lengths": POST + "Content-Length: 2\r\nContent-Length: 2\r\n\r\n{}",
    "no known coding": POST + "Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
    "a length before chunks": POST + "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "a length behind chunks": POST + "Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n",
    "a space before the colon": POST + "Content-Length : 2\r\n\r\n{}",
    "a bare CR": GET + "A: b\rContent-Length: 2\r\n\r\n{}",
    "NUL in a field": GET + "A: b\x00c\r\n\r\n",
    "NUL in a name": GET + "A\x00: b\r\n\r\n",
    "a chunk size that overflows": CHUNKED + "10000000000000002\r\n{}\r\n0\r\n\r\n",
    "a chunk size with a sign": CHUNKED + "+2\r\n{}\r\n0\r\n\r\n",
    "a chunk size in no number": CHUNKED + "0x2\r\n{}\r\n0\r\n\r\n",
    "a chunk that ends late": CHUNKED + "2\r\n{}junk\r\n0\r\n\r\n",
}


@pytest.mark.parametrize("text", AMBIGUOUS.values(), ids=AMBIGUOUS)
def test_an_ambiguous_request_is_refused_once(served: Served, text: str) -> None:
    answer = exchange(served, text + HIDDEN)
    assert re.findall(r"HTTP/1\.1 (\d{3})", answer) == ["400"]


UPGRADES = {
    "h2c": "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\n",
    "websocket": (
        "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
        "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
    ),
}


@pytest.mark.parametrize("fields", UPGRADES.values(), ids=UPGRADES)
def test_a_protocol_upgrade_is_ignored(served: Served, fields: str) -> None:
    answer = exchange(served, GET + fields + "\r\n")
    assert answer.startswith("HTTP/1.1 ")
    assert "HTTP/1.1 101" not in answer
    assert "upgrade:" not in answer.lower()


FOREIGN = {
    "CONNECT": "CONNECT example.org:443 HTTP/1.1\r\nHost: example.org:443\r\n\r\n",
    "TRACE": "TRACE /v1/hello HTTP/1.1\r\nHost: {host}\r\nX-Secret: 1\r\n\r\n",
    "HTTP/2 without asking": "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
}


@pytest.mark.parametrize("text", FOREIGN.values(), ids=FOREIGN)
def test_connect_trace_and_http_2_are_refused(served: Served, text: str) -> None:
    answer = exchange(served, text)
    assert answer.startswith("HTTP/1.1 4")
    assert "X-Secret" not in answer


def test_three_hundred_pipelined_requests_are_answered(served: Served) -> None:
    answer = exchange(served, (GET + "\r\n") * 300 + GET + "Connection: close\r\n\r\n")
    assert answer.count("HTTP/1.1 200 OK") == 301
