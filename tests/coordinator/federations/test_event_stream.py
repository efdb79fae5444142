from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from coordinator.db.engine import Database
from coordinator.federations import store
from coordinator.storage import event_log
from schemas.messages.federations import FederationPlan
from tests.coordinator.enrolment.test_key_rotation import rotation
from tests.served import ADMIN_TOKEN, Served


@contextmanager
def following(client: httpx.Client, fid: str, last: int | None = None) -> Iterator[Iterator[dict[str, Any]]]:
    """Read a federation's events as they come."""
    headers = {} if last is None else {"Last-Event-ID": str(last)}
    with client.stream("GET", f"/v1/federations/{fid}/events", headers=headers) as stream:
        assert stream.status_code == 200
        assert stream.headers["content-type"].startswith("text/event-stream")
        lines = stream.iter_lines()
        assert next(lines) == "retry: 2000"
        yield _parsed(lines)


def _parsed(lines: Iterator[str]) -> Iterator[dict[str, Any]]:
    event: dict[str, Any] = {}
    for line in lines:
        if line:
            name, _, value = line.partition(": ")
            event[name] = json.loads(value) if name == "data" else value
        elif "data" in event:
            yield event
            event = {}


def test_people_see_clients_come_and_go_as_it_happens(coordinator: Served) -> None:
    fid = coordinator.federation()
    with following(coordinator.admin, fid) as seen:
        silo = coordinator.enrol(fid, "a")
        came = next(seen)
        assert (came["id"], came["event"]) == ("1", "client")
        assert came["data"]["client_id"] == silo.client_id
        assert came["data"]["state"] == "enrolled"
        coordinator.http("admin-token-of-the-tests").delete(f"/v1/federations/{fid}/clients/{silo.client_id}")
        gone = next(seen)
        assert (gone["id"], gone["data"]["state"]) == ("2", "revoked")


def test_a_stream_resumes_after_the_last_event_that_was_seen(coordinator: Served) -> None:
    fid = coordinator.federation()
    ids = [coordinator.enrol(fid, name).client_id for name in ("a", "b", "c")]
    with following(coordinator.admin, fid, last=1) as seen:
        assert [next(seen)["data"]["client_id"] for _ in range(2)] == ids[1:]


def test_a_client_sees_rounds_and_itself_but_no_other_client(coordinator: Served) -> None:
    fid = coordinator.federation(rounds={"min_clients": 1})
    one, two = coordinator.enrol(fid, "a"), coordinator.enrol(fid, "b")
    coordinator.admin.post(f"/v1/federations/{fid}/start")
    with following(two.http, fid, last=0) as seen:
        first, second = next(seen), next(seen)
    assert first["data"]["client_id"] == two.client_id
    assert second["event"] == "round"
    assert second["data"]["round"] == 1
    assert one.client_id not in json.dumps([first, second])


def test_a_revoked_clients_stream_ends(coordinator: Served) -> None:
    fid = coordinator.federation()
    silo = coordinator.enrol(fid, "a")
    with following(silo.http, fid) as seen:
        coordinator.admin.delete(f"/v1/federations/{fid}/clients/{silo.client_id}")
        assert list(seen) == []


def test_a_stream_ends_with_the_key_that_opened_it(coordinator: Served) -> None:
    silo = coordinator.enrol(coordinator.federation(), "a")
    new = Ed25519PrivateKey.generate()
    with following(silo.http, silo.federation_id) as seen:
        request = rotation(silo, new, overlap_seconds=0)
        assert coordinator.signing(silo.key).put("/v1/me/key", json=request).status_code == 200
        assert list(seen) == []
    with following(coordinator.signing(new), silo.federation_id, last=0) as seen:
        assert next(seen)["data"]["client_id"] == silo.client_id


def test_a_stream_ends_with_the_token_that_opened_it(coordinator: Served) -> None:
    fid = coordinator.federation()
    made = coordinator.admin.post("/v1/tokens", json={"role": "auditor", "name": "leaving"}).json()
    with following(coordinator.http(made["token"]), fid) as seen:
        assert coordinator.http(ADMIN_TOKEN).delete(f"/v1/tokens/{made['id']}").status_code == 204
        assert list(seen) == []


@pytest.mark.parametrize("last", ["-1", "one", "9" * 30])
def test_a_malformed_last_event_id_is_refused(coordinator: Served, last: str) -> None:
    fid = coordinator.federation()
    path = f"/v1/federations/{fid}/events"
    assert coordinator.admin.get(path, headers={"Last-Event-ID": last}).status_code == 422


def test_events_are_numbered_in_the_order_of_their_commits(database: Database) -> None:
    with database.write() as session:
        plan = FederationPlan.model_validate({"name": "x", "strategy": {"name": "fedavg"}})
        fid = store.create(session, plan).id

    def write() -> None:
        for _ in range(5):
            with database.write() as session:
                event_log.append(session, fid, "round", {"thread": threading.get_ident()})

    seen: list[int] = []
    threads = [threading.Thread(target=write) for _ in range(4)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads) or len(seen) < 20:
        with database.read() as session:
            seen += [event.number for event in event_log.since(session, fid, seen[-1] if seen else 0)]
    assert seen == list(range(1, 21))


def test_an_event_that_is_rolled_back_leaves_no_gap(database: Database) -> None:
    with database.write() as session:
        plan = FederationPlan.model_validate({"name": "x", "strategy": {"name": "fedavg"}})
        fid = store.create(session, plan).id
    with database.write() as session:
        event_log.append(session, fid, "round", {})
        session.rollback()
    with database.write() as session:
        assert event_log.append(session, fid, "round", {}) == 1
