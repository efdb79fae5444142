"""The limit of failed enrolments per address, on all replicas; valid tokens are not limited."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import httpx
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from sqlalchemy import select

from coordinator.db.tables.identity import FailedEnrolmentRow
from schemas.identity.enrolment_token import EnrolmentTokenText, read
from tests.scene.coordinator import Served, coordinator_fixture, enrolment, slug

Rows = Callable[[str, str], list[tuple[Any, ...]]]
LIMIT = 5


served = coordinator_fixture("each", failed_enrolments_per_minute=LIMIT, trusted_proxies="127.0.0.1")


def signed_request(served: Served, federation_id: str, name: str) -> dict[str, Any]:
    token = served.enrolment_token(federation_id, name)
    return enrolment(served.http(), token, name, Ed25519PrivateKey.generate())


def with_wrong_secret(request: dict[str, Any]) -> dict[str, Any]:
    """Change the secret of a request's token."""
    token = read(request["token"])
    return request | {"token": str(EnrolmentTokenText(token.id, "A" * 43, token.server))}


def post_enrolment(served: Served, request: dict[str, Any], address: str = "192.0.2.1") -> httpx.Response:
    return served.http().post("/v1/enrolments", json=request, headers={"X-Forwarded-For": address})


def test_a_valid_token_passes_the_failure_limit(served: Served, rows: Rows) -> None:
    request = signed_request(served, served.federation(), "a")
    for address, wrong in (
        ("192.0.2.1", with_wrong_secret(request)),
        ("192.0.2.2", request | {"token": "tsr1_guess"}),
    ):
        for _ in range(LIMIT):
            assert post_enrolment(served, wrong, address).status_code == 401
    for address in ("192.0.2.1", "192.0.2.2"):
        limited = post_enrolment(served, with_wrong_secret(request), address)
        assert (limited.status_code, slug(limited)) == (429, "rate-limited")
        assert 1 <= int(limited.headers["retry-after"]) <= 65
    assert rows(served.database_url, "SELECT count(*) FROM failed_enrolments") == [(2 * LIMIT,)]
    assert post_enrolment(served, with_wrong_secret(request), "192.0.2.3").status_code == 401
    assert post_enrolment(served, request, "192.0.2.1").status_code == 201
    assert post_enrolment(served, request, "192.0.2.1").status_code == 200, "nor does its repeated request"


def test_misuse_of_tokens_is_audited_behind_the_limit(served: Served) -> None:
    request = signed_request(served, served.federation(), "a")
    for _ in range(LIMIT):
        assert post_enrolment(served, with_wrong_secret(request)).status_code == 401
    stolen = request | {"name": "b"}
    assert [post_enrolment(served, stolen).status_code for _ in range(LIMIT + 3)] == [429] * (LIMIT + 3)
    assert post_enrolment(served, stolen, "192.0.2.2").status_code == 401
    refused = [e for e in served.admin.get("/v1/audit").json()["items"] if e["event"] == "enrolment-refused"]
    assert [(e["subject"], e["reason"]) for e in refused] == [("b", "another name")] * LIMIT


def test_refusals_beyond_the_limit_are_not_audited(served: Served) -> None:
    request = signed_request(served, served.federation(), "a")
    assert post_enrolment(served, request).status_code == 201
    changed = request | {"name": "b"}
    answers = [post_enrolment(served, changed).status_code for _ in range(LIMIT + 3)]
    assert answers == [401] * LIMIT + [429] * 3
    events = [entry["event"] for entry in served.admin.get("/v1/audit").json()["items"]]
    assert events.count("enrolment-refused") == LIMIT


def test_the_failure_limit_is_shared_by_replicas(
    serve: Callable[..., Served], fresh_postgres: Callable[[], str]
) -> None:
    url = fresh_postgres()
    replicas = [serve(url, failed_enrolments_per_minute=LIMIT, trusted_proxies="127.0.0.1") for _ in range(2)]
    request = signed_request(replicas[0], replicas[0].federation(), "a")
    for number in range(LIMIT):
        assert post_enrolment(replicas[number % 2], with_wrong_secret(request)).status_code == 401
    assert [post_enrolment(replica, with_wrong_secret(request)).status_code for replica in replicas] == [
        429,
        429,
    ]
    assert post_enrolment(replicas[1], request).status_code == 201


def test_failed_enrolments_are_forgotten_after_a_minute(served: Served, rows: Rows) -> None:
    request = with_wrong_secret(signed_request(served, served.federation(), "a"))
    assert [post_enrolment(served, request).status_code for _ in range(LIMIT + 1)] == [401] * LIMIT + [429]
    with served.database.write() as session:
        for row in session.scalars(select(FailedEnrolmentRow)):
            row.failed_at -= timedelta(minutes=1)
    assert post_enrolment(served, request).status_code == 401
    assert rows(served.database_url, "SELECT count(*) FROM failed_enrolments") == [(1,)]


def test_addresses_of_an_ipv6_network_share_a_limit(served: Served) -> None:
    request = with_wrong_secret(signed_request(served, served.federation(), "a"))
    for number in range(LIMIT):
        assert post_enrolment(served, request, f"2001:db8::{number + 1}").status_code == 401
    assert post_enrolment(served, request, "2001:db8::ffff").status_code == 429
    assert post_enrolment(served, request, "2001:db8:0:1::1").status_code == 401
