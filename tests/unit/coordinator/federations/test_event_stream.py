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
from tests.scene.coordinator import ADMIN_TOKEN, Served
from tests.scene.key_rotation import rotation
from tests.scene.plans import federation_plan


@contextmanager
def following(
    client: httpx.Client, federation_id: str, last: int | None = None
) -> Iterator[Iterator[dict[str, Any]]]:
    """Open a federation's event stream; yield its events."""
    headers = {} if last is None else {"Last-Event-ID": str(last)}
    with client.stream("GET", f"/v1/federations/{federation_id}/events", headers=headers) as stream:
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


def test_people_receive_events_of_enrolment_and_revocation(coordinator: Served) -> None:
    federation_id = coordinator.federation()
    with following(coordinator.admin, federation_id) as events:
        silo = coordinator.enrol(federation_id, "a")
        came = next(events)
        assert (came["id"], came["event"]) == ("1", "client")
        assert came["data"]["client_id"] == silo.client_id
        assert came["data"]["state"] == "enrolled"
        coordinator.http("admin-token-of-the-tests").delete(
            f"/v1/federations/{federation_id}/clients/{silo.client_id}"
        )
        gone = next(events)
        assert (gone["id"], gone["data"]["state"]) == ("2", "revoked")


def test_a_stream_resumes_after_last_event_id(coordinator: Served) -> None:
    federation_id = coordinator.federation()
    ids = [coordinator.enrol(federation_id, name).client_id for name in ("a", "b", "c")]
    with following(coordinator.admin, federation_id, last=1) as events:
        assert [next(events)["data"]["client_id"] for _ in range(2)] == ids[1:]


def test_clients_receive_no_events_of_other_clients(coordinator: Served) -> None:
    federation_id = coordinator.federation(rounds={"min_clients": 1})
    first_client, two = coordinator.enrol(federation_id, "a"), coordinator.enrol(federation_id, "b")
    coordinator.start_federation(federation_id)
    with following(two.http, federation_id, last=0) as events:
        first, second = next(events), next(events)
    assert first["data"]["client_id"] == two.client_id
    assert second["event"] == "round"
    assert second["data"]["round"] == 1
    assert first_client.client_id not in json.dumps([first, second])


def test_a_revoked_clients_stream_ends(coordinator: Served) -> None:
    federation_id = coordinator.federation()
    silo = coordinator.enrol(federation_id, "a")
    with following(silo.http, federation_id) as events:
        coordinator.admin.delete(f"/v1/federations/{federation_id}/clients/{silo.client_id}")
        assert list(events) == []


def test_a_stream_ends_with_its_clients_key(coordinator: Served) -> None:
    silo = coordinator.enrol(coordinator.federation(), "a")
    new = Ed25519PrivateKey.generate()
    with following(silo.http, silo.federation_id) as events:
        request = rotation(silo, new, overlap_seconds=0)
        assert coordinator.signing(silo.key).put("/v1/me/key", json=request).status_code == 200
        assert list(events) == []
    with following(coordinator.signing(new), silo.federation_id, last=0) as events:
        assert next(events)["data"]["client_id"] == silo.client_id


def test_a_stream_ends_with_its_callers_token(coordinator: Served) -> None:
    federation_id = coordinator.federation()
    created = coordinator.admin.post("/v1/tokens", json={"role": "auditor", "name": "leaving"}).json()
    with following(coordinator.http(created["token"]), federation_id) as events:
        assert coordinator.http(ADMIN_TOKEN).delete(f"/v1/tokens/{created['id']}").status_code == 204
        assert list(events) == []


@pytest.mark.parametrize("last", ["-1", "one", "9" * 30])
def test_a_malformed_last_event_id_is_refused(coordinator: Served, last: str) -> None:
    federation_id = coordinator.federation()
    path = f"/v1/federations/{federation_id}/events"
    assert coordinator.admin.get(path, headers={"Last-Event-ID": last}).status_code == 422


def test_events_are_numbered_in_order_of_commits(database: Database) -> None:
    with database.write() as session:
        plan = federation_plan()
        federation_id = store.create(session, plan).id

    def write() -> None:
        for _ in range(5):
            with database.write() as session:
                event_log.append(session, federation_id, "round", {"thread": threading.get_ident()})

    numbers: list[int] = []
    threads = [threading.Thread(target=write) for _ in range(4)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads) or len(numbers) < 20:
        with database.read() as session:
            numbers += [
                event.number
                for event in event_log.since(session, federation_id, numbers[-1] if numbers else 0)
            ]
    assert numbers == list(range(1, 21))


def test_a_rolled_back_event_leaves_no_gap(database: Database) -> None:
    with database.write() as session:
        plan = federation_plan()
        federation_id = store.create(session, plan).id
    with database.write() as session:
        event_log.append(session, federation_id, "round", {})
        session.rollback()
    with database.write() as session:
        assert event_log.append(session, federation_id, "round", {}) == 1
