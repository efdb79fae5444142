"""Nonces of signed requests: each is stored once, and a member cannot fill the table."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from datetime import UTC, datetime
from typing import Any

import pytest
from sqlalchemy import insert
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session

from coordinator.auth import nonces
from coordinator.auth.nonces import MAX_REQUESTS_PER_KEY
from coordinator.db.engine import Database, database_time
from coordinator.db.tables.identity import UsedNonceRow
from coordinator.db.upsert import insert_new
from schemas.identity.keys import name_of
from schemas.identity.signed_requests import SignedRequest
from tests.scene.coordinator import Served, coordinator_fixture, slug
from tests.scene.rounds import join, running, try_join, url
from tests.scene.signed_requests import send, signed
from tests.scene.waiting import wait_until

EARLIER = datetime(2020, 1, 1, tzinfo=UTC)
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


class _Undo(Exception):
    """Raised to roll back a transaction."""


def _use_at_once(database: Database, used: Sequence[tuple[str, str]]) -> list[Exception | None]:
    """Use nonces of keys in threads, of which all but the first share a transaction; return their errors."""

    def use(key: str, nonce: str) -> Exception | None:
        now = int(time.time())
        signed = SignedRequest((), "", created=now, expires=now + 60, nonce=nonce, keyid=key, signature=b"")
        try:
            nonces.use(database, key, signed)
        except Exception as error:
            return error
        return None

    queues = database.small_commits._queues
    with ThreadPoolExecutor(len(used)) as pool, suppress(_Undo), database.write() as session:
        key, nonce = used[0]  # for which the first thread waits, and the others for it
        insert_new(session, UsedNonceRow, {"public_key": key, "nonce": nonce, "used_at": EARLIER})
        begun = [pool.submit(use, key, nonce)]
        wait_until(lambda: "nonces" in queues)
        begun += [pool.submit(use, *item) for item in used[1:]]
        wait_until(lambda: len(queues["nonces"].waiting) == len(used) - 1)
        raise _Undo
    return [item.result(20) for item in begun]


def test_a_replay_refuses_no_other_request(served: Served, rows: Rows) -> None:
    used = [("first", "0"), *(("second", str(number % 4)) for number in range(8))]
    errors = _use_at_once(served.database, used)
    assert errors[0] is None
    assert sorted(type(error).__name__ for error in errors[1:]) == ["NoneType"] * 4 + ["RequestReplayed"] * 4
    assert nonce_count(served, rows) == 5


def test_a_lost_answer_makes_no_replay(served: Served, rows: Rows, monkeypatch: pytest.MonkeyPatch) -> None:
    """A commit that fails may have succeeded: its requests must not be tried again as replays."""
    database = Database(served.database_url)

    @contextmanager
    def losing() -> Iterator[Session]:
        with Database.write(database) as session:
            yield session
        raise OperationalError(None, None, ConnectionError())

    with closing(database):
        monkeypatch.setattr(database, "write", losing)
        errors = _use_at_once(database, [("key", str(number)) for number in range(4)])
    assert [type(error).__name__ for error in errors] == ["OperationalError"] * 4
    assert nonce_count(served, rows) == 4


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
