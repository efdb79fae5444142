"""Webhook messages: delivered at least once, signed, and repeated after failures."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import pytest
from cryptography.exceptions import InvalidSignature
from pydantic import SecretStr
from sqlalchemy import select, update
from standardwebhooks.webhooks import Webhook

from coordinator.db.engine import Database, database_time
from coordinator.db.tables.federations import RoundRow
from coordinator.db.tables.webhooks import WebhookRow
from coordinator.errors import SettingsUnusable
from coordinator.rounds import transitions
from coordinator.rounds.store import latest
from coordinator.secure_sum import announcements
from coordinator.server import load_settings
from coordinator.storage import webhook_outbox
from coordinator.storage.server_key import ServerKey
from coordinator.webhook import LEASE, WebhookSender, report_stuck_rounds, retry_wait
from schemas.identity.keys import public_key
from tests.scene.coordinator import Served, start
from tests.scene.rounds import PLAN, join, one_round, plan, running, scored, send_scores
from tests.scene.trickling_server import trickling
from tests.scene.waiting import wait_until
from tests.unit.coordinator.aggregation.closed_round import simple
from tests.unit.coordinator.webhook_receiver import receiving

SECRET = "whsec_" + base64.b64encode(bytes(range(32))).decode()
KEY = ServerKey(bytes(32))


def sender(database: Database, url: str, **changes: Any) -> WebhookSender:
    options: dict[str, Any] = {
        "url": url,
        "secret": SecretStr(SECRET),
        "key": KEY,
        "stuck_seconds": 3600.0,
        "tick_seconds": 0.02,
        "first_wait_seconds": 0.01,
    }
    return WebhookSender(database, **(options | changes))


def send(database: Database, url: str, **changes: Any) -> bool:
    return sender(database, url, **changes).send_next()


def message_row(database: Database) -> WebhookRow:
    with database.read() as session:
        return session.scalars(select(WebhookRow)).one()


def make_due(database: Database) -> None:
    with database.write() as session:
        session.execute(update(WebhookRow).values(due_at=database_time(session)))


def add_message(database: Database) -> str:
    federation_id = simple(database).federation_id
    with database.write() as session:
        webhook_outbox.add(session, federation_id, "federation.paused", {"reason": "a test"})
    return federation_id


def test_a_message_is_sent_once_with_valid_signatures(database: Database) -> None:
    federation_id = add_message(database)
    with receiving() as receiver:
        assert send(database, receiver.url)
        assert not send(database, receiver.url)
    ((headers, body),) = receiver.received
    assert json.loads(body)["type"] == "federation.paused"
    assert json.loads(body)["data"] == {"federation": federation_id, "reason": "a test"}
    assert Webhook(SECRET).verify(body, headers)["type"] == "federation.paused"
    signature = next(part for part in headers["webhook-signature"].split() if part.startswith("v1a,"))
    signed = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + body
    verify = public_key(KEY.public).verify
    verify(base64.b64decode(signature[4:]), signed)
    with pytest.raises(InvalidSignature):
        verify(base64.b64decode(signature[4:]), signed + b" ")
    assert abs(int(headers["webhook-timestamp"]) - time.time()) < 60


def test_messages_without_a_secret_have_one_signature(sqlite_database: Database) -> None:
    add_message(sqlite_database)
    with receiving() as receiver:
        assert send(sqlite_database, receiver.url, secret=None)
    assert [s[:4] for s in receiver.received[0][0]["webhook-signature"].split()] == ["v1a,"]


@pytest.mark.parametrize("status", [301, 302, 400, 404, 410, 500, 503])
def test_messages_are_repeated_until_a_2xx_answer(sqlite_database: Database, status: int) -> None:
    add_message(sqlite_database)
    with receiving(status) as receiver:
        assert send(sqlite_database, receiver.url)
        assert message_row(sqlite_database).delivered_at is None
        make_due(sqlite_database)
        assert send(sqlite_database, receiver.url)
        assert message_row(sqlite_database).delivered_at is not None
        first, second = receiver.received
    assert first[1] == second[1]
    assert first[0]["webhook-id"] == second[0]["webhook-id"]


def test_unavailable_and_silent_receivers_get_messages_later(sqlite_database: Database) -> None:
    add_message(sqlite_database)
    with receiving() as receiver:
        closed = receiver.url
    assert send(sqlite_database, closed)
    make_due(sqlite_database)
    with receiving() as receiver:
        receiver.released.clear()
        assert send(sqlite_database, receiver.url, timeout_seconds=0.1)
        assert message_row(sqlite_database).delivered_at is None
        receiver.released.set()
        make_due(sqlite_database)
        assert send(sqlite_database, receiver.url)
    row = message_row(sqlite_database)
    assert row.attempts == 3
    assert row.delivered_at is not None


@pytest.mark.parametrize("part", ["headers", "one header", "hints"])
def test_an_endless_answer_is_a_failed_delivery(sqlite_database: Database, part: str) -> None:
    add_message(sqlite_database)
    with trickling(part) as server:
        assert send(sqlite_database, server.url, timeout_seconds=0.4)
        assert message_row(sqlite_database).delivered_at is None
        make_due(sqlite_database)
        with receiving() as receiver:
            assert send(sqlite_database, receiver.url)
    assert message_row(sqlite_database).delivered_at is not None


def test_an_endless_body_does_not_delay_delivery(sqlite_database: Database) -> None:
    add_message(sqlite_database)
    with trickling("body") as server:
        assert send(sqlite_database, server.url, timeout_seconds=60.0)
    assert message_row(sqlite_database).delivered_at is not None


def test_retry_intervals_grow_to_an_hour() -> None:
    waits = [retry_wait(attempts, 5.0, 0.5) for attempts in range(1, 9)]
    assert waits[:4] == [5.0, 20.0, 80.0, 320.0]
    assert waits[-1] == retry_wait(1000, 5.0, 0.5) == 3600.0
    assert (retry_wait(1, 5.0, 0.0), retry_wait(1, 5.0, 1.0)) == (2.5, 7.5)


def test_a_message_is_leased_to_one_worker(database: Database) -> None:
    add_message(database)
    first = webhook_outbox.claim(database, LEASE)
    assert first is not None
    assert webhook_outbox.claim(database, LEASE) is None
    make_due(database)  # the worker is dead and its lease over
    second = webhook_outbox.claim(database, LEASE)
    assert second is not None
    assert (second.id, second.attempts) == (first.id, 2)
    webhook_outbox.retry_in(database, first, 0.0)  # it lives after all; the claim is the other's
    assert webhook_outbox.claim(database, LEASE) is None
    webhook_outbox.mark_delivered(database, second)
    make_due(database)
    assert webhook_outbox.claim(database, LEASE) is None


def test_several_workers_deliver_each_message_once(database: Database) -> None:
    federation_id = simple(database).federation_id
    with database.write() as session:
        for number in range(12):
            webhook_outbox.add(session, federation_id, "federation.paused", {"reason": str(number)})
    with receiving() as receiver:
        workers = [sender(database, receiver.url) for _ in range(3)]
        for worker in workers:
            worker.start()
        wait_until(lambda: len(receiver.received) >= 12)
        for worker in workers:
            worker.stop()
    assert sorted(int(message["data"]["reason"]) for message in receiver.messages) == list(range(12))


def test_a_rolled_back_transaction_sends_nothing(sqlite_database: Database) -> None:
    federation_id = simple(sqlite_database).federation_id

    def fails() -> None:
        with sqlite_database.write() as session:
            webhook_outbox.add(session, federation_id, "federation.paused", {})
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fails()
    assert webhook_outbox.claim(sqlite_database, LEASE) is None


def test_stuck_rounds_are_reported_once_per_state(database: Database) -> None:
    federation_id = simple(database).federation_id
    with database.write() as session:
        long_ago = database_time(session) - timedelta(hours=2)
        session.execute(update(RoundRow).values(state="open", opened_at=long_ago))
    assert [report_stuck_rounds(database, 3600.0) for _ in range(3)] == [1, 0, 0]
    assert report_stuck_rounds(database, 3 * 3600.0) == 0
    row = message_row(database)
    assert (row.federation_id, row.kind) == (federation_id, "round.stuck")
    assert (row.data["round"], row.data["state"]) == (1, "open")
    with database.write() as session:
        session.execute(update(RoundRow).values(state="summing", summing_at=long_ago))
    assert report_stuck_rounds(database, 3600.0) == 1


def test_old_undelivered_messages_are_deleted(sqlite_database: Database) -> None:
    add_message(sqlite_database)
    assert webhook_outbox.delete_old(sqlite_database) == 0
    with sqlite_database.write() as session:
        session.execute(update(WebhookRow).values(created_at=database_time(session) - timedelta(days=4)))
    assert webhook_outbox.delete_old(sqlite_database) == 1


def test_abandonments_pauses_and_blamed_members_are_reported(database: Database) -> None:
    closed = simple(database)
    with database.write() as session:
        row = latest(session, closed.federation_id)
        assert row is not None
        federation = transitions.federation(session, closed.federation_id)
        transitions.abandon_sum(session, federation, row, "secure-sum-failed")
        summed: Any = type("Session", (), {"number": 2})()
        announcements.blamed(session, closed.federation_id, row, summed, [])
        announcements.blamed(session, closed.federation_id, row, summed, ["cli_x"])
    with database.read() as session:
        sent = {message.kind: message.data for message in session.scalars(select(WebhookRow))}
    assert sent == {
        "federation.paused": {"reason": "round 1: secure-sum-failed"},
        "round.abandoned": {"round": 1, "reason": "secure-sum-failed"},
        "sum.member-blamed": {"round": 1, "session": 2, "clients": ["cli_x"]},
    }


@contextmanager
def serving(url: str, **settings: Any) -> Iterator[Served]:
    served = start(url, tick_seconds=0.05, **settings)
    try:
        yield served
    finally:
        served.stop()


def test_a_coordinator_sends_new_and_earlier_messages(
    fresh_database: Callable[[str], str],
) -> None:
    url = fresh_database("sqlite")
    with serving(url) as served:
        federation_id, _ = running(served, **PLAN)
        path = f"/v1/federations/{federation_id}"
        for _ in range(2):
            assert served.admin.post(f"{path}/pause").status_code == 200
    with receiving() as receiver, serving(url, webhook_url=receiver.url, webhook_secret=SECRET) as served:
        wait_until(lambda: len(receiver.received) == 1)
        receiver.released.clear()
        assert served.admin.post(f"{path}/finish").status_code == 200
        wait_until(lambda: len(receiver.received) == 2)
        # The receiver has not answered yet, and nobody waits for it: neither requests nor the stop.
        assert served.admin.get(path).json()["state"] == "finished"
    assert [message["type"] for message in receiver.messages] == ["federation.paused", "federation.finished"]
    assert receiver.messages[1]["data"] == {"federation": federation_id, "rounds": 0}


@pytest.mark.parametrize(
    ("variable", "value", "reason"),
    [
        ("TESSERA_WEBHOOK_URL", "http://hooks.example.org/x", "not an https:// address"),
        ("TESSERA_WEBHOOK_URL", "hooks.example.org", "not a URL"),
        ("TESSERA_WEBHOOK_URL", "file:///etc/passwd", "not a URL"),
        ("TESSERA_WEBHOOK_SECRET", "a password", "openssl rand"),
        ("TESSERA_WEBHOOK_SECRET", "whsec_c2hvcnQ=", "openssl rand"),
    ],
)
def test_insecure_webhook_urls_and_secrets_are_refused(
    monkeypatch: pytest.MonkeyPatch, variable: str, value: str, reason: str
) -> None:
    monkeypatch.setenv(variable, value)
    with pytest.raises(SettingsUnusable, match=reason) as refused:
        load_settings()
    assert variable in str(refused.value)
    assert "c2hvcnQ" not in str(refused.value)
    assert "a password" not in str(refused.value)


def test_the_final_message_counts_clients_helped_by_mixing(fresh_database: Callable[[str], str]) -> None:
    with receiving() as receiver, serving(fresh_database("sqlite"), webhook_url=receiver.url) as served:
        federation_id, silos = running(served, **plan(rounds={"total": 1}))
        for silo, value in zip(silos, (-0.5, -0.1), strict=True):
            join(silo, 1)
            mixing = {"value": value, "error": 0.1, "count": 8}
            assert send_scores(silo, 1, scored({"loss": 1.0}) | {"mixing": mixing}) == (204, "")
        one_round(served, federation_id, silos, 1, [1.0, 3.0])
        wait_until(lambda: len(receiver.received) == 1)
    data = {"federation": federation_id, "rounds": 1, "mixing": {"better": 1, "worse": 0, "noise": 1}}
    assert receiver.messages[0]["data"] == data
