"""Who fails to enrol again and again has to wait, on every replica; a good token never does."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import httpx
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from sqlalchemy import select

from coordinator.db.tables.identity import FailedEnrolmentRow
from schemas.identity.enrolment_token import EnrolmentTokenText, read
from tests.served import Served, enrolment, slug

Rows = Callable[[str, str], list[tuple[Any, ...]]]
LIMIT = 5


@pytest.fixture
def served(serve: Callable[..., Served], database_url: str) -> Served:
    return serve(database_url, failed_enrolments_per_minute=LIMIT, trusted_proxies="127.0.0.1")


def good(served: Served, federation_id: str, name: str) -> dict[str, Any]:
    token = served.enrolment_token(federation_id, name)
    return enrolment(served.http(), token, name, Ed25519PrivateKey.generate())


def guess(request: dict[str, Any]) -> dict[str, Any]:
    """Change the secret of a request's token."""
    token = read(request["token"])
    return request | {"token": str(EnrolmentTokenText(token.id, "A" * 43, token.server))}


def post(served: Served, request: dict[str, Any], address: str = "192.0.2.1") -> httpx.Response:
    return served.http().post("/v1/enrolments", json=request, headers={"X-Forwarded-For": address})


def test_a_good_token_passes_however_often_its_neighbours_failed(served: Served, rows: Rows) -> None:
    request = good(served, served.federation(), "a")
    for address, wrong in (("192.0.2.1", guess(request)), ("192.0.2.2", request | {"token": "tsr1_guess"})):
        for _ in range(LIMIT):
            assert post(served, wrong, address).status_code == 401
    for address in ("192.0.2.1", "192.0.2.2"):
        limited = post(served, guess(request), address)
        assert (limited.status_code, slug(limited)) == (429, "rate-limited")
        assert 1 <= int(limited.headers["retry-after"]) <= 65
    assert rows(served.database_url, "SELECT count(*) FROM failed_enrolments") == [(2 * LIMIT,)]
    assert post(served, guess(request), "192.0.2.3").status_code == 401
    assert post(served, request, "192.0.2.1").status_code == 201
    assert post(served, request, "192.0.2.1").status_code == 200, "nor does its repeated request"


def test_a_real_tokens_misuse_is_written_down_behind_an_address_that_failed_too_often(served: Served) -> None:
    request = good(served, served.federation(), "a")
    for _ in range(LIMIT):
        assert post(served, guess(request)).status_code == 401
    stolen = request | {"name": "b"}
    assert [post(served, stolen).status_code for _ in range(LIMIT + 3)] == [429] * (LIMIT + 3)
    assert post(served, stolen, "192.0.2.2").status_code == 401
    refused = [e for e in served.admin.get("/v1/audit").json()["items"] if e["event"] == "enrolment-refused"]
    assert [(e["subject"], e["reason"]) for e in refused] == [("b", "another name")] * LIMIT


def test_what_is_beyond_the_bound_is_not_even_written_down(served: Served) -> None:
    request = good(served, served.federation(), "a")
    assert post(served, request).status_code == 201
    other = request | {"name": "b"}
    answers = [post(served, other).status_code for _ in range(LIMIT + 3)]
    assert answers == [401] * LIMIT + [429] * 3
    events = [entry["event"] for entry in served.admin.get("/v1/audit").json()["items"]]
    assert events.count("enrolment-refused") == LIMIT


def test_replicas_count_together(serve: Callable[..., Served], fresh_postgres: Callable[[], str]) -> None:
    url = fresh_postgres()
    replicas = [serve(url, failed_enrolments_per_minute=LIMIT, trusted_proxies="127.0.0.1") for _ in range(2)]
    request = good(replicas[0], replicas[0].federation(), "a")
    for number in range(LIMIT):
        assert post(replicas[number % 2], guess(request)).status_code == 401
    assert [post(replica, guess(request)).status_code for replica in replicas] == [429, 429]
    assert post(replicas[1], request).status_code == 201


def test_a_minute_later_it_may_be_tried_again_and_what_was_is_forgotten(served: Served, rows: Rows) -> None:
    request = guess(good(served, served.federation(), "a"))
    assert [post(served, request).status_code for _ in range(LIMIT + 1)] == [401] * LIMIT + [429]
    with served.database.write() as session:
        for row in session.scalars(select(FailedEnrolmentRow)):
            row.failed_at -= timedelta(minutes=1)
    assert post(served, request).status_code == 401
    assert rows(served.database_url, "SELECT count(*) FROM failed_enrolments") == [(1,)]


def test_addresses_of_one_ipv6_network_are_one(served: Served) -> None:
    request = guess(good(served, served.federation(), "a"))
    for number in range(LIMIT):
        assert post(served, request, f"2001:db8::{number + 1}").status_code == 401
    assert post(served, request, "2001:db8::ffff").status_code == 429
    assert post(served, request, "2001:db8:0:1::1").status_code == 401
