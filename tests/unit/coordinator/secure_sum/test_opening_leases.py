"""Leases of opening a sum: the holder commits the total once, despite crashes."""

from __future__ import annotations

from datetime import timedelta

import numpy as np
import pytest

from coordinator.db.engine import Database, database_time
from coordinator.db.federation_lock import lock_federation
from coordinator.db.tables.secure_sum import SumSessionRow
from coordinator.observability import fault_points
from coordinator.observability.fault_points import Place
from coordinator.rounds import transitions
from coordinator.rounds.store import LostRace
from coordinator.secure_sum import leases, opening
from coordinator.secure_sum.leases import claim_due, lease_of
from coordinator.storage import garbage_collection
from coordinator.storage.staging import Staging
from tests.scene.database import payload_ids
from tests.unit.coordinator.secure_sum.stored import (
    AT_ONCE,
    KEY,
    LEASE_SECONDS,
    ServiceStopped,
    spoil,
    stored_session,
    worker,
)


class WorkerKilled(Exception):
    """The worker is gone."""


def test_a_session_is_leased_to_one_worker(database: Database) -> None:
    stored = stored_session(database)
    first = stored.claim()
    assert claim_due(database, LEASE_SECONDS) is None
    stored.expire()
    second = stored.claim()
    for late in (
        lambda: stored.open(first),
        lambda: opening.abort(database, first, "x", KEY),
        lambda: opening.abandon(database, first),
        lambda: lease_of(database, first, -1.0).extend(),
    ):
        with pytest.raises(LostRace):
            late()
    lease_of(database, first, 1.0).release()
    assert claim_due(database, LEASE_SECONDS) is None
    stored.open(second)
    assert np.array_equal(stored.total(), stored.played.expected())
    with pytest.raises(LostRace):
        stored.open(second)
    garbage_collection.collect(database, grace=AT_ONCE)
    assert payload_ids(database) == {stored.session().total_payload_id}


def test_a_lease_is_extended_until_its_release(database: Database) -> None:
    stored = stored_session(database)
    claim = stored.claim(0.2)
    lease = lease_of(database, claim, 90.0)
    lease._last -= 100.0
    lease.extend()
    with database.read() as session:
        row = session.get_one(SumSessionRow, stored.session_id)
        assert row.lease_expires_at is not None
        assert row.lease_expires_at > database_time(session) + timedelta(seconds=60)
    lease.release()
    assert stored.claim().token != claim.token


def test_starting_the_only_replica_expires_leases(database: Database) -> None:
    stored = stored_session(database)
    stored.claim()
    with database.write() as session:
        leases.expire_leases(session)
    stored.open(stored.claim())
    assert stored.row().state == "closing"


def test_a_stopping_service_leaves_the_session_to_another(database: Database) -> None:
    stored = stored_session(database)

    def stop() -> None:
        raise ServiceStopped

    assert worker(database, check=stop).open_next()
    assert stored.session().state == "opening"
    assert worker(database).open_next()
    assert np.array_equal(stored.total(), stored.played.expected())


PLACES: list[Place] = ["sum-claim-written", "sum-claim-committed", "sum-block-staged", "sum-total-written"]


@pytest.mark.parametrize("place", [*PLACES, "sum-total-committed"])
@pytest.mark.parametrize("masking", ["pairwise", "none"])
def test_a_crashed_workers_sum_is_opened_by_another(
    database: Database, place: Place, masking: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored = stored_session(database, masking=masking, stops={2: 2})
    _die_at(monkeypatch, place)
    with pytest.raises(WorkerKilled):
        stored.open(block_bytes=160)
    monkeypatch.undo()
    if place == "sum-total-committed":
        assert claim_due(database, LEASE_SECONDS) is None
    else:
        assert stored.session().state == "opening"
        assert stored.row().state == "summing"
        stored.expire()
        stored.open(stored.claim())
    assert stored.row().state == "closing"
    assert np.array_equal(stored.total(), stored.played.expected())
    assert not stored.messages()
    garbage_collection.collect(database, grace=AT_ONCE)
    with database.write() as session:
        transitions.finish(session, lock_federation(session, stored.federation_id))
    garbage_collection.collect(database, grace=AT_ONCE)
    assert payload_ids(database) == {stored.session().total_payload_id}


@pytest.mark.parametrize("place", ["sum-abort-written", "sum-abort-committed"])
def test_an_interrupted_abort_is_repeated(
    database: Database, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored = stored_session(database)
    spoil(stored)
    _die_at(monkeypatch, place)
    with pytest.raises(WorkerKilled):
        worker(database).open_next()
    monkeypatch.undo()
    stored.expire()
    assert worker(database).open_next() == (place == "sum-abort-written")
    assert stored.row().reason == "sum-out-of-range"
    assert not stored.messages()


def _die_at(monkeypatch: pytest.MonkeyPatch, place: Place) -> None:
    def die(label: Place) -> None:
        if label == place:
            raise WorkerKilled

    for module in (leases, opening):
        monkeypatch.setattr(module, "may_crash", die)
    monkeypatch.setattr(Staging, "discard", lambda *_: None)  # the dead discard nothing
    assert place in fault_points.PLACES
