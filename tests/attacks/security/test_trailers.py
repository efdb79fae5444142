"""Trailer fields are counted and never taken for header fields."""

from __future__ import annotations

import json

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from coordinator.http.limits.connections import FIELDS_LIMIT, HEAD_LIMIT
from tests.scene.coordinator import Served, coordinator_fixture, enrolment


def post(served: Served, body: bytes, trailer: bytes) -> int:
    """Post an enrolment behind a proxy, in chunks; return the status."""
    with served.line() as line:
        line.sendall(
            b"POST /v1/enrolments HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            b"Transfer-Encoding: chunked\r\nX-Forwarded-For: 203.0.113.9\r\nConnection: close\r\n\r\n"
            + b"%x\r\n%s\r\n0\r\n%s\r\n"
            % (len(body), body, trailer)
        )
        return int(line.makefile("rb").read()[9:12])


served = coordinator_fixture("sqlite", trusted_proxies="127.0.0.1")


def test_a_trailer_is_not_a_forwarded_address(served: Served) -> None:
    token = served.enrolment_token(served.federation(), "a", cidr="192.0.2.0/24")
    body = json.dumps(enrolment(served.http(), token, "a", Ed25519PrivateKey.generate())).encode()
    assert post(served, body, b"") == 401
    assert post(served, body, b"X-Forwarded-For: 192.0.2.5\r\n") == 401


@pytest.mark.parametrize(
    "trailer",
    [b"X-Large: " + b"x" * HEAD_LIMIT + b"\r\n", b"A: b\r\n" * (FIELDS_LIMIT + 1)],
    ids=["large", "many"],
)
def test_trailers_count_against_the_heads_limit(served: Served, trailer: bytes) -> None:
    assert post(served, b"{}", trailer) == 431
