"""Aggregation workers: each round is published once, and a dead worker is replaced."""

from __future__ import annotations

import base64
from datetime import timedelta
from pathlib import Path

import numpy as np
import pytest
from pydantic import SecretStr
from sqlalchemy import update
from sqlalchemy.exc import IntegrityError, OperationalError

from coordinator.aggregation import job
from coordinator.aggregation.job import claim_due, lease_of
from coordinator.db.engine import Database, database_time
from coordinator.db.federation_lock import lock_federation
from coordinator.db.tables.federations import ChunkRow, PayloadRow, RoundRow, WeightsRow
from coordinator.errors import Unavailable
from coordinator.observability.metrics import Metrics
from coordinator.rounds import transitions
from coordinator.rounds.store import LostRace
from coordinator.storage import garbage_collection, payload_moves, payloads, server_key
from coordinator.storage.server_key import ServerKey
from coordinator.workers import Ticker
from tests.scene.database import row_count
from tests.scene.faults import Killed
from tests.scene.waiting import wait_until
from tests.unit.coordinator.aggregation.closed_round import (
    BLOCK_BYTES,
    no_interruption,
    publish,
    round_row,
    served_values,
    simple,
)


def test_a_round_is_claimed_by_one_worker(database: Database) -> None:
    simple(database)
    assert claim_due(database, 60.0) is not None
    assert claim_due(database, 60.0) is None


def test_a_dead_worker_is_replaced_after_its_lease(database: Database) -> None:
    closed = simple(database)
    first = claim_due(database, 0.05)
    assert first is not None
    # it has staged some bytes, and then there is only silence
    with database.write() as session:
        for _ in range(3):
            payloads.stage(session).append(session, bytes(5000))
    _expire_lease(database)
    publish(database)
    assert round_row(database, closed).state == "published"
    with pytest.raises(LostRace):
        job.aggregate(database, first, block_bytes=BLOCK_BYTES, between=no_interruption)
    assert row_count(database, WeightsRow) == 3
    assert garbage_collection.collect(database) == 0
    assert garbage_collection.collect(database, grace=timedelta(seconds=-5)) == 3
    assert row_count(database, PayloadRow) == 3 + 1  # what was delivered, and the mean that all share


def test_staged_bodies_of_running_aggregations_are_not_collected(database: Database) -> None:
    simple(database)
    claim = claim_due(database, 60.0)
    assert claim is not None
    job.aggregate(
        database,
        claim,
        block_bytes=BLOCK_BYTES,
        between=lambda: _assert_none(garbage_collection.collect(database, grace=timedelta(seconds=-5))),
    )
    assert row_count(database, WeightsRow) == 3


@pytest.mark.parametrize(("clients", "alone"), [(1, 1), (3, 0)])
def test_publishing_returns_the_number_of_isolated_clients(
    clients: int, alone: int, database: Database
) -> None:
    simple(database, clients)
    assert publish(database) == alone


def _assert_none(collected: int) -> None:
    assert collected == 0


def _expire_lease(database: Database) -> None:
    with database.write() as session:
        session.execute(
            update(RoundRow).values(lease_expires_at=database_time(session) - timedelta(seconds=1))
        )


def test_an_overtaken_worker_publishes_nothing(database: Database) -> None:
    closed = simple(database)
    slow = claim_due(database, 60.0)
    assert slow is not None
    overtaken = False

    def between() -> None:
        nonlocal overtaken
        if not overtaken:
            overtaken = True
            _expire_lease(database)
            publish(database)

    with pytest.raises(LostRace):
        job.aggregate(database, slow, block_bytes=BLOCK_BYTES, between=between)
    assert round_row(database, closed).state == "published"
    assert row_count(database, WeightsRow) == 3
    assert round_row(database, closed, 2).state == "open"


@pytest.mark.parametrize("after_blocks", [1, 2])
def test_an_interrupted_worker_leaves_its_round_to_another(database: Database, after_blocks: int) -> None:
    closed = simple(database)
    left = after_blocks

    def between() -> None:
        nonlocal left
        left -= 1
        if left == 0:
            raise Killed

    with pytest.raises(Killed):
        publish(database, between)
    assert round_row(database, closed).state == "aggregating"
    assert row_count(database, WeightsRow) == 0
    _expire_lease(database)
    publish(database)
    np.testing.assert_allclose(served_values(database, closed.clients[0], {"x": (930,)}), 1.0)


def test_a_lease_is_extended_during_work(database: Database) -> None:
    simple(database)
    claim = claim_due(database, 0.2)
    assert claim is not None
    lease = lease_of(database, claim, 0.0)
    lease._seconds = 60.0
    lease._last -= 100.0
    lease.extend()
    with database.read() as session:
        row = session.get(RoundRow, claim.round_id)
        assert row is not None
        assert row.lease_expires_at is not None
        assert row.lease_expires_at > database_time(session) + timedelta(seconds=50)
    lease.release()
    again = claim_due(database, 60.0)
    assert again is not None
    lease.release()  # not ours any more: nothing happens
    with pytest.raises(LostRace):
        lease._extend_by(1.0)


def test_finishing_the_federation_overrides_an_aggregation(database: Database) -> None:
    closed = simple(database)
    claim = claim_due(database, 60.0)
    assert claim is not None
    with database.write() as session:
        transitions.finish(session, lock_federation(session, closed.federation_id))
    with pytest.raises(LostRace):
        job.aggregate(database, claim, block_bytes=BLOCK_BYTES, between=no_interruption)
    row = round_row(database, closed)
    assert (row.state, row.reason) == ("abandoned", "finished")
    assert row_count(database, WeightsRow) == 0


def _ticker(database: Database) -> Ticker:
    return Ticker(
        database,
        lease_seconds=60.0,
        tick_seconds=0.02,
        block_bytes=BLOCK_BYTES,
        key=ServerKey(bytes(32)),
        metrics=Metrics(),
        moved=lambda: None,
    )


def test_a_failed_aggregation_abandons_its_round(database: Database) -> None:
    closed = simple(database)
    with database.write() as session:
        session.execute(update(ChunkRow).values(data=b"short"))
    ticker = _ticker(database)
    ticker.start()
    try:
        wait_until(lambda: round_row(database, closed).state == "abandoned")
    finally:
        ticker.stop()
    assert round_row(database, closed).reason == "aggregation-failed"
    assert round_row(database, closed, 2).state == "open"
    assert row_count(database, WeightsRow) == 0


@pytest.mark.parametrize(
    ("fault", "state"),
    [
        (OperationalError("SELECT 1", {}, Exception("gone")), "aggregating"),
        (Unavailable("the payload store does not answer"), "aggregating"),
        (IntegrityError("INSERT", {}, Exception("twice")), "abandoned"),
    ],
    ids=["the database is away", "the store is away", "the same would happen again"],
)
def test_errors_other_than_unavailable_storage_abandon_the_round(
    database: Database, monkeypatch: pytest.MonkeyPatch, fault: Exception, state: str
) -> None:
    closed = simple(database)

    def fails(*_: object, **__: object) -> None:
        raise fault

    monkeypatch.setattr(job, "aggregate", fails)
    ticker = _ticker(database)
    assert ticker._aggregate()
    assert round_row(database, closed).state == state


def test_a_round_waits_for_an_unavailable_payload_store(database: Database, tmp_path: Path) -> None:
    pytest.importorskip("obstore")
    server_key.load(database, SecretStr(base64.urlsafe_b64encode(bytes(32)).decode().rstrip("=")))
    closed, store = simple(database), tmp_path / "store"
    assert len(list(payload_moves.move(database, f"file://{store}", smallest=1))) == 3
    away = store.rename(tmp_path / "away")
    store.write_text("no folder, so that every read fails")
    ticker = _ticker(database)
    assert ticker._aggregate()
    assert round_row(database, closed).state == "aggregating"
    store.unlink()
    away.rename(store)
    assert not ticker._aggregate()  # the lease has not run out
    _expire_lease(database)
    assert ticker._aggregate()
    assert round_row(database, closed).state == "published"


def test_restarting_a_single_service_resumes_its_aggregation(
    sqlite_database: Database,
) -> None:
    closed = simple(sqlite_database)
    assert claim_due(sqlite_database, 3600.0) is not None  # the process that claimed it is dead
    ticker = _ticker(sqlite_database)
    ticker.start()
    try:
        wait_until(lambda: round_row(sqlite_database, closed).state == "published")
    finally:
        ticker.stop()
