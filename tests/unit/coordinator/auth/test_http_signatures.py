"""Signed requests over HTTP: accepted requests, and the answers to all others."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import httpx
import pytest
from sqlalchemy import text

from coordinator.auth import nonces
from schemas.wire.digests import digest_of, to_field
from tests.scene.coordinator import Served, Silo, slug
from tests.scene.rounds import running, scored, url
from tests.scene.signed_requests import request_bytes, send, signed

Change = Callable[[dict[str, str]], dict[str, str]]


@pytest.fixture
def silo(coordinator: Served) -> Silo:
    return coordinator.enrol(coordinator.federation(), "a")


def test_a_signed_request_identifies_its_client(coordinator: Served, silo: Silo) -> None:
    answer = coordinator.http().send(signed(coordinator, silo, "GET", "/v1/me?x=%20y"))
    assert answer.json()["client_id"] == silo.client_id


REFUSED: dict[str, tuple[Change, str]] = {
    "another time": (
        lambda h: h | {"signature-input": h["signature-input"].replace(";created=1", ";created=0")},
        "signature-profile",
    ),
    "no input": (lambda h: {k: v for k, v in h.items() if k != "signature-input"}, "signature-profile"),
    "no signature": (lambda h: {k: v for k, v in h.items() if k != "signature"}, "signature-profile"),
    "a bearer token beside it": (lambda h: h | {"authorization": "Bearer x"}, "signature-profile"),
    "another label": (
        lambda h: {k: v.replace("sig1", "sig") if k.startswith("sig") else v for k, v in h.items()},
        "signature-profile",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_altered_requests_are_refused(coordinator: Served, silo: Silo, case: str) -> None:
    change, kind = REFUSED[case]
    request = signed(coordinator, silo, "GET", "/v1/me")
    altered = httpx.Request("GET", request.url, headers=change(dict(request.headers)))
    assert send(coordinator, altered) == (401, kind)


@pytest.mark.parametrize("seconds", [-151, 125])
def test_a_clock_skew_error_contains_the_server_time(coordinator: Served, silo: Silo, seconds: float) -> None:
    request = signed(coordinator, silo, "GET", "/v1/me", created=time.time() + seconds)
    answer = coordinator.http().send(request)
    assert (answer.status_code, slug(answer)) == (401, "clock-skew")
    server_time = datetime.fromisoformat(answer.json()["server_time"])
    assert abs((datetime.now(UTC) - server_time).total_seconds()) < 30


@pytest.mark.parametrize("seconds", [-140, -100, 110])
def test_a_small_clock_skew_is_accepted(coordinator: Served, silo: Silo, seconds: float) -> None:
    request = signed(coordinator, silo, "GET", "/v1/me", created=time.time() + seconds)
    assert send(coordinator, request) == (200, "")


def test_a_revoked_key_is_refused_by_all_replicas(
    serve: Callable[..., Served], fresh_postgres: Callable[[], str]
) -> None:
    database = fresh_postgres()
    first, second = serve(database), serve(database)
    federation_id = first.federation()
    silo = first.enrol(federation_id, "a")
    assert send(second, signed(second, silo, "GET", "/v1/me")) == (200, "")
    assert first.admin.delete(f"/v1/federations/{federation_id}/clients/{silo.client_id}").status_code == 204
    for replica in (first, second):
        assert send(replica, signed(replica, silo, "GET", "/v1/me")) == (401, "key-revoked")


def test_a_signed_post_is_accepted_once_across_replicas(
    serve: Callable[..., Served], fresh_postgres: Callable[[], str]
) -> None:
    database = fresh_postgres()
    first, second = serve(database), serve(database)
    _, (silo, _) = running(first)
    request = signed(first, silo, "POST", url(silo, 1, "/join"))
    assert send(first, request) == (200, "")
    assert send(first, request) == (401, "replayed")
    forwarded = httpx.Request("POST", second.url + request.url.path, headers=request.headers)
    assert send(second, forwarded) == (401, "replayed")
    assert send(second, signed(second, silo, "POST", url(silo, 1, "/join"))) == (200, "")


def test_nonces_are_separate_for_each_key(coordinator: Served) -> None:
    _, (silo, second) = running(coordinator)
    nonce = "the-same-nonce-twice"
    for client in (silo, second):
        join = signed(coordinator, client, "POST", url(client, 1, "/join"), nonce=nonce)
        assert send(coordinator, join) == (200, "")


def test_used_nonces_are_forgotten_after_five_minutes(
    database_url: str, serve: Callable[..., Served]
) -> None:
    served = serve(database_url)
    _, (silo, _) = running(served)
    assert send(served, signed(served, silo, "POST", url(silo, 1, "/join"))) == (200, "")
    with served.database.write() as session:
        session.execute(text("UPDATE used_nonces SET used_at = '2020-01-01 00:00:00+00:00'"))
    assert send(served, signed(served, silo, "POST", url(silo, 1, "/join"))) == (200, "")
    assert nonces.delete_expired(served.database) == 1
    assert nonces.delete_expired(served.database) == 0, "that of the last request"
    with served.database.read() as session:
        assert session.scalar(text("SELECT count(*) FROM used_nonces")) == 1


SCORES = json.dumps(scored({"loss": 1.0})).encode()
BODIES: dict[str, tuple[dict[str, Any], bytes, tuple[int, str]]] = {
    "the digest of the body": ({}, SCORES, (204, "")),
    "another body": ({"covers": to_field(digest_of(b"x"))}, SCORES, (400, "digest-mismatch")),
    "only md5": ({"covers": "md5=:Q2hlY2sgSW50ZWdyaXR5IQ==:"}, SCORES, (400, "digest-missing")),
    "an empty digest": ({"covers": ""}, SCORES, (400, "digest-missing")),
    "no digest": ({}, SCORES, (400, "digest-missing")),
}


@pytest.mark.parametrize("case", BODIES)
def test_a_body_needs_its_signed_digest(coordinator: Served, case: str) -> None:
    _, (silo, _) = running(coordinator)
    assert silo.http.post(url(silo, 1, "/join")).status_code == 200
    options, body, expected = BODIES[case]
    request = signed(
        coordinator,
        silo,
        "PUT",
        url(silo, 1, "/scores"),
        body,
        **{"Content-Type": "application/json"},
        **options,
    )
    if case == "no digest":
        del request.headers["Content-Digest"]
    assert send(coordinator, request) == expected


def test_a_signature_for_another_server_is_refused(
    serve: Callable[..., Served], fresh_database: Callable[[str], str]
) -> None:
    served = serve(fresh_database("sqlite"), public_names="tessera.example, 127.0.0.1")
    silo = served.enrol(served.federation(), "a")
    for host, status in (("TESSERA.example:443", 200), ("other.example", 421), ("tessera.example.org", 421)):
        request = signed(served, silo, "GET", "/v1/me", Host=host)
        assert served.http().send(request).status_code == status
    assert send(served, signed(served, silo, "GET", "/v1/me", Host="x")) == (421, "authority-unknown")


def test_a_caller_is_refused_before_its_body_arrives(coordinator: Served, silo: Silo) -> None:
    request = signed(coordinator, silo, "PUT", url(silo, 1, "/update"), b"x" * 1000)
    request.headers["signature"] = f"sig1=:{'A' * 86}==:"
    with coordinator.line() as line:
        line.sendall(request_bytes(request, body=b""))
        assert b"signature-invalid" in line.recv(65536)
