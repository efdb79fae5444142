"""Notifications of changed counts: batched, published once, and beside changes of state."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import select
from sqlalchemy.exc import OperationalError

from coordinator.db.engine import Database
from coordinator.db.federation_lock import lock_federation
from coordinator.db.tables.federations import EventRow
from coordinator.federations import store
from coordinator.rounds import notifications, transitions
from coordinator.rounds import store as rounds
from coordinator.rounds.notifications import Change, PendingNotifications
from tests.scene.coordinator import Served, Silo
from tests.scene.plans import federation_plan
from tests.scene.rounds import deliver, join, plan, running, scored, url, values, wait_for
from tests.scene.waiting import wait_until

Rows = Callable[[str, str], list[tuple[Any, ...]]]


def round_events(rows: Rows, served: Served, federation_id: str) -> list[dict[str, Any]]:
    """Return the data of a federation's round events, in order."""
    stored = rows(
        served.database_url,
        f"SELECT data FROM events WHERE federation_id = '{federation_id}' AND kind = 'round' ORDER BY number",
    )
    return [json.loads(data) if isinstance(data, str) else data for (data,) in stored]


def wait_until_counted(rows: Rows, served: Served, federation_id: str, **counts: int) -> list[dict[str, Any]]:
    """Wait, not long, until the last event shows these counts."""

    def counted() -> list[dict[str, Any]] | None:
        events = round_events(rows, served, federation_id)
        return events if events[-1]["counts"].items() >= counts.items() else None

    return wait_until(counted)


def score(silo: Silo, number: int) -> None:
    assert silo.http.put(url(silo, number, "/scores"), json=scored({"loss": 0.7})).status_code == 204


def test_many_joins_share_few_events(serve: Callable[..., Served], database_url: str, rows: Rows) -> None:
    served = serve(database_url, tick_seconds=3600)  # nobody looks who is not woken
    federation_id, silos = running(served, 8, **plan(rounds={"min_clients": 8}))
    began = time.monotonic()
    for silo in silos[:7]:
        join(silo, 1)
    events = wait_until_counted(rows, served, federation_id, joined=7)
    assert {event["state"] for event in events} == {"open"}
    assert len(events) <= 3 + (time.monotonic() - began) / notifications.INTERVAL_SECONDS


def test_late_scores_of_an_ended_round_are_published(
    serve: Callable[..., Served], database_url: str, rows: Rows
) -> None:
    served = serve(database_url, tick_seconds=3600)
    federation_id, silos = running(served, **plan(rounds={"total": 1}))
    for silo in silos:
        join(silo, 1)
    for silo in silos:
        deliver(silo, 1, values(1.0))
    wait_for(served, federation_id, 1, "published")
    score(silos[0], 1)
    scores = wait_until(lambda: round_events(rows, served, federation_id)[-1]["scores"])
    last = round_events(rows, served, federation_id)[-1]
    assert (last["state"], scores["mean"]["loss"]["value"]) == ("published", 0.7)


def test_a_stopping_service_publishes_pending_counts(
    serve: Callable[..., Served], database_url: str, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notifications, "INTERVAL_SECONDS", 3600.0)
    served = serve(database_url, tick_seconds=3600)
    federation_id, silos = running(served, 5, **plan(rounds={"min_clients": 5}))
    for silo in silos[:4]:
        join(silo, 1)
    served.stop()
    assert round_events(rows, served, federation_id)[-1]["counts"]["joined"] == 4


def open_one(database: Database) -> str:
    """Create a federation and open its first round."""
    with database.write() as session:
        row = store.create(session, federation_plan())
        transitions.start(session, row)
        return row.id


@pytest.fixture
def opened(database: Database) -> str:
    """A federation in its first round."""
    return open_one(database)


def last_event(database: Database, federation_id: str) -> int:
    with database.write() as session:
        return lock_federation(session, federation_id).events


def numbers(database: Database, federation_id: str) -> list[int]:
    """Return the rounds that a federation's events are of, in order."""
    with database.read() as session:
        query = select(EventRow.data).where(EventRow.federation_id == federation_id).order_by(EventRow.number)
        return [data["round"] for data in session.scalars(query)]


def test_two_replicas_publish_a_change_once(database: Database, opened: str) -> None:
    first, second = PendingNotifications(), PendingNotifications()
    first.add(Change(opened, 1, 1))
    second.add(Change(opened, 1, 1))
    first.publish(database)
    second.publish(database)
    assert numbers(database, opened) == [1, 1]  # that it opened, and what changed
    second.add(Change(opened, 1, last_event(database, opened)))
    second.publish(database, is_due=True)
    assert numbers(database, opened) == [1, 1, 1]


def test_a_round_keeps_its_notification_after_others_events(database: Database, opened: str) -> None:
    pending = PendingNotifications()
    pending.add(Change(opened, 1, last_event(database, opened)))
    with database.write() as session:
        federation = lock_federation(session, opened)
        row = rounds.get_round(session, opened, 1, lock=True)
        transitions.abandon(session, federation, row, "too-few-updates")  # round 2 opens
        after = federation.events + 2
    pending.publish(database)
    assert numbers(database, opened) == [1, 1, 2], "that it was abandoned shows all that it counted"
    pending.add(Change(opened, 1, after - 1))
    pending.publish(database, is_due=True)
    assert numbers(database, opened) == [1, 1, 2, 1]


def test_notifications_of_a_round_keep_their_interval(database: Database, opened: str) -> None:
    pending = PendingNotifications()
    pending.publish(database)
    assert pending.seconds_until_due() is None
    assert pending.add(Change(opened, 1, 1))
    assert pending.seconds_until_due() == 0.0
    pending.publish(database)
    assert pending.seconds_until_due() is None
    assert pending.add(Change(opened, 1, last_event(database, opened)))
    assert not pending.add(Change(opened, 1, 1)), "an older change is told with the newer"
    pending.publish(database)
    assert len(numbers(database, opened)) == 2, "too soon"
    left = pending.seconds_until_due()
    assert left is not None
    assert 0 < left <= notifications.INTERVAL_SECONDS
    time.sleep(left)
    pending.publish(database)
    assert len(numbers(database, opened)) == 3


def test_changes_of_a_failed_commit_are_published_later(
    database: Database, opened: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pending = PendingNotifications()
    pending.add(Change(opened, 1, 1))

    def fails(*_: object) -> None:
        raise OperationalError("COMMIT", {}, Exception("disk I/O error"))

    with monkeypatch.context() as broken:
        broken.setattr("sqlalchemy.orm.session.SessionTransaction.commit", fails)
        assert not pending.publish(database)
    assert numbers(database, opened) == [1]
    assert pending.seconds_until_due(), "not at once: it would fail again"
    assert pending.publish(database, is_due=True)
    assert numbers(database, opened) == [1, 1]


def test_pending_rounds_have_a_maximum(
    database: Database, opened: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notifications, "MAX_PENDING", 1)
    pending = PendingNotifications()
    pending.add(Change(opened, 1, 1))
    pending.add(Change(opened, 2, 1))  # there is no such round: to tell of it would fail
    pending.publish(database)
    assert numbers(database, opened) == [1, 1]


def test_a_missing_round_is_dropped_from_pending(database: Database, opened: str) -> None:
    pending = PendingNotifications()
    for number in (9, 1):  # there is no round 9
        pending.add(Change(opened, number, 1))
    pending.publish(database)
    assert numbers(database, opened) == [1, 1]
    assert pending.seconds_until_due() is None


def test_a_locked_federation_does_not_delay_other_notifications(postgres_database: Database) -> None:
    database = postgres_database
    locked, *free = (open_one(database) for _ in range(3))
    pending = PendingNotifications()
    for federation_id in (locked, *free):
        pending.add(Change(federation_id, 1, 1))
    with database.write() as session:
        lock_federation(session, locked)
        began = time.monotonic()
        assert not pending.publish(database)
        first = time.monotonic() - began
        assert [numbers(database, federation_id) for federation_id in free] == [[1, 1], [1, 1]]
        began = time.monotonic()
        assert not pending.publish(database, is_due=True)
        assert first < 2 < time.monotonic() - began, "it waits longer for who was in its way before"
    assert pending.publish(database, is_due=True)
    assert numbers(database, locked) == [1, 1]


def test_a_locked_due_round_does_not_delay_notifications(
    serve: Callable[..., Served], fresh_postgres: Callable[[], str], rows: Rows
) -> None:
    served = serve(fresh_postgres(), tick_seconds=0.05)
    due, (late, *_) = running(served, 1, **plan(rounds={"min_clients": 1, "collect_seconds": 1}))
    free, silos = running(served, 3, **plan(rounds={"min_clients": 3}))
    join(late, 1)
    with served.database.write() as session:
        lock_federation(session, due)
        time.sleep(1.5)  # its deadline is over, and who moves rounds waits for the lock
        began = time.monotonic()
        join(silos[0], 1)
        wait_until_counted(rows, served, free, joined=1)
        assert time.monotonic() - began < 5
