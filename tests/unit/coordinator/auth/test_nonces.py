"""Nonces of signed requests: each is stored once, and a member cannot fill the table."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sqlalchemy import insert

from coordinator.auth.nonces import MAX_REQUESTS_PER_KEY
from coordinator.db.engine import database_time
from coordinator.db.tables.identity import UsedNonceRow
from schemas.identity.keys import name_of
from tests.scene.coordinator import Served, coordinator_fixture, slug
from tests.scene.rounds import join, running, try_join, url
from tests.scene.signed_requests import send, signed

Rows = Callable[[str, str], list[tuple[Any, ...]]]


served = coordinator_fixture("each")


def nonce_count(served: Served, rows: Rows) -> int:
    return int(rows(served.database_url, "SELECT count(*) FROM used_nonces")[0][0])


def test_refused_requests_store_no_nonce(served: Served, rows: Rows) -> None:
    _, (silo, _) = running(served)
    elsewhere = served.federation()
    paths = {
        f"/v1/federations/{elsewhere}/rounds/1/join": (404, "not-found"),
        f"/v1/federations/{silo.federation_id}/start": (403, "forbidden"),
        "/v1/federations": (403, "forbidden"),
        "/v1/tokens": (403, "forbidden"),
    }
    for path, expected in paths.items():
        assert send(served, signed(served, silo, "POST", path)) == expected
    assert nonce_count(served, rows) == 0
    join(silo, 1)
    assert nonce_count(served, rows) == 1


def test_repeated_posts_of_clients_are_refused(served: Served, rows: Rows) -> None:
    """Whichever route it is: one that is added later must not forget to look."""
    _, (silo, _) = running(served)
    statuses = []
    for path, operations in served.http().get("/openapi.json").json()["paths"].items():
        if "post" not in operations or path in ("/v1/enrolments", "/v1/sign-in"):  # those sign nothing
            continue
        request = signed(served, silo, "POST", path.format(fid=silo.federation_id, n=1))
        first, second = send(served, request), send(served, request)
        if first != (403, "forbidden"):
            statuses.append(path)
            assert second == (401, "replayed"), path
    assert statuses == ["/v1/federations/{fid}/rounds/{n}/join"]
    assert nonce_count(served, rows) == 1


def test_a_member_cannot_fill_the_table(served: Served, rows: Rows) -> None:
    _, (silo, second) = running(served)
    with served.database.write() as session:
        key, moment = name_of(silo.key), database_time(session)
        fields = {"public_key": key, "used_at": moment}
        full = [fields | {"nonce": f"n{number}"} for number in range(MAX_REQUESTS_PER_KEY)]
        session.execute(insert(UsedNonceRow), full)
    refused = try_join(silo, 1)
    assert (refused.status_code, slug(refused)) == (429, "rate-limited")
    assert 290 <= int(refused.headers["retry-after"]) <= 306
    assert nonce_count(served, rows) == MAX_REQUESTS_PER_KEY
    assert silo.http.get(url(silo, 1)).status_code == 200
    join(second, 1)
