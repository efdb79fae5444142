"""A total is the exact sum of the inputs, committed once, by the holder of the lease, whoever dies when."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable, Iterable
from datetime import timedelta

import numpy as np
import pytest
from sqlalchemy import select

from coordinator.db.engine import Database, database_time
from coordinator.db.federation_lock import lock_federation
from coordinator.db.tables.federations import PayloadRow
from coordinator.db.tables.identity import AuditRow
from coordinator.db.tables.secure_sum import SumMessageRow, SumSessionRow
from coordinator.federations.store import revoke
from coordinator.observability import fault_points
from coordinator.observability.fault_points import Place
from coordinator.rounds import transitions
from coordinator.rounds.store import LostRace
from coordinator.secure_sum import leases, opening
from coordinator.secure_sum.leases import SumLease, claim_due
from coordinator.secure_sum.totals import summed_total
from coordinator.secure_sum.worker import SumWorker
from coordinator.storage import garbage_collection, payloads
from schemas.identity.keys import encode
from schemas.messages.secure_sum import UnmaskStep
from schemas.secure_sum.encoding import Modulus, most
from schemas.wire.digests import digest_of
from tests.coordinator.secure_sum.stored import KEY, LEASE_SECONDS, ROUND, Stored, stored_session

AT_ONCE = timedelta(days=-1)


class Killed(Exception):
    """The worker is gone."""


class Stopped(Exception):
    """The service stops."""


@pytest.mark.parametrize("masking", ["pairwise", "none"])
@pytest.mark.parametrize("block_bytes", [32, 7 * 32, 2**20])
def test_the_total_is_the_sum_of_the_inputs(database: Database, masking: str, block_bytes: int) -> None:
    stored = stored_session(database, masking=masking)
    assert stored.open(block_bytes=block_bytes) == 5
    assert np.array_equal(stored.total(), stored.played.expected())
    assert stored.row().state == "closing"
    assert stored.row().closing_at is not None
    assert stored.session().state == "done"
    assert stored.session().lease_token is None
    assert not stored.messages()
    assert set(stored.states().values()) == {"arrived"}
    with database.read() as session:
        total = summed_total(session, stored.round_id)
    assert total.terms == stored.played.terms
    assert total.counted == tuple(member.client for member in stored.played.terms.members)
    assert total.payload_id == stored.session().total_payload_id


def test_both_maskings_give_the_same_total(fresh_database: Callable[[str], str]) -> None:
    totals = []
    for masking in ("pairwise", "none"):
        database = Database(fresh_database("sqlite"))
        stored = stored_session(database, masking=masking, stops={1: 2})
        stored.open()
        totals.append(stored.total())
        database.close()
    assert np.array_equal(*totals)


def test_members_who_stopped_are_dropped_or_counted_by_the_step_that_they_reached(database: Database) -> None:
    stops = {0: 1, 1: 2, 2: 3, 3: 4}
    stored = stored_session(database, 14, stops=stops)
    assert stored.open() == 12
    assert np.array_equal(stored.total(), stored.played.expected())
    dropped = {position for position, state in stored.states().items() if state == "dropped"}
    assert dropped == {0, 1}
    assert set(stored.states().values()) == {"arrived", "dropped"}
    with database.read() as session:
        assert len(summed_total(session, stored.round_id).counted) == 12


def test_a_member_that_was_revoked_after_its_vector_was_accepted_is_counted(database: Database) -> None:
    stored = stored_session(database)
    with database.write() as session:
        lock_federation(session, stored.federation_id)
        assert revoke(session, stored.federation_id, "cli_004")
    stored.open()
    assert np.array_equal(stored.total(), stored.played.expected())
    assert stored.states()[4] == "arrived"


@pytest.mark.parametrize("masking", ["pairwise", "none"])
def test_a_spoilt_sum_abandons_the_round_and_pauses_the_federation(database: Database, masking: str) -> None:
    stored = stored_session(database, masking=masking)
    _spoil(stored)
    assert _worker(database).open_next()
    assert (stored.row().state, stored.row().reason) == ("abandoned", "sum-out-of-range")
    assert (stored.session().state, stored.session().reason) == ("aborted", "sum-out-of-range")
    assert stored.federation().state == "paused"
    assert not stored.messages()
    assert set(stored.states().values()) == {"rejected"}
    with database.read() as session:
        entries = [row.document for row in session.scalars(select(AuditRow))]
        with pytest.raises(LookupError):
            summed_total(session, stored.round_id)
    paused = [entry for entry in entries if entry["event"] == "federation-paused"]
    assert [entry["reason"] for entry in paused] == [f"round {ROUND}: sum-out-of-range"]
    garbage_collection.collect(database, grace=AT_ONCE)
    assert not _payloads(database)


def test_shares_that_give_no_secret_abort_the_session_and_another_follows(database: Database) -> None:
    """Those who sent their shares are spent; here the others are enough for another session."""
    stored = stored_session(database, 13, stops={n: 4 for n in range(4)})
    _falsify(stored, holders=range(4, 13))
    assert _worker(database).open_next()
    assert (stored.session().state, stored.session().reason) == ("aborted", opening.SHARES_INCONSISTENT)
    assert stored.row().state == "summing"
    with database.read() as session:
        following = session.scalars(select(SumSessionRow).where(SumSessionRow.number == 2)).one()
    assert following.state == "keys"
    assert [member["client"] for member in following.terms["members"]] == [f"cli_{n:03}" for n in range(4)]
    assert not stored.messages()
    assert not _worker(database).open_next()


def test_a_single_false_share_is_no_obstacle(database: Database) -> None:
    stored = stored_session(database)
    _falsify(stored, holders=[0])
    stored.open()
    assert np.array_equal(stored.total(), stored.played.expected())


def test_without_another_session_the_round_is_abandoned(database: Database) -> None:
    stored = stored_session(database, number=3)
    _falsify(stored, holders=range(5))
    assert _worker(database).open_next()
    assert (stored.row().state, stored.row().reason) == ("abandoned", "secure-sum-failed")
    assert stored.federation().state == "paused"


def test_an_unreadable_session_is_aborted(database: Database) -> None:
    stored = stored_session(database, number=3)
    with database.write() as session:
        message = session.get_one(SumMessageRow, (stored.session_id, 0, "shares"))
        message.body = b"{}"
    assert _worker(database).open_next()
    assert (stored.session().state, stored.session().reason) == ("aborted", opening.OPENING_FAILED)


def test_one_worker_at_a_time_has_a_session(database: Database) -> None:
    stored = stored_session(database)
    first = stored.claim()
    assert claim_due(database, LEASE_SECONDS) is None
    stored.expire()
    second = stored.claim()
    for late in (
        lambda: stored.open(first),
        lambda: opening.abort(database, first, "x", KEY),
        lambda: opening.abandon(database, first),
        lambda: SumLease(database, first, -1.0).extend(),
    ):
        with pytest.raises(LostRace):
            late()
    SumLease(database, first, 1.0).release()
    assert claim_due(database, LEASE_SECONDS) is None
    stored.open(second)
    assert np.array_equal(stored.total(), stored.played.expected())
    with pytest.raises(LostRace):
        stored.open(second)
    garbage_collection.collect(database, grace=AT_ONCE)
    assert _payloads(database) == {stored.session().total_payload_id}


def test_a_lease_is_extended_by_work_and_ends_with_release(database: Database) -> None:
    stored = stored_session(database)
    claim = stored.claim(0.2)
    lease = SumLease(database, claim, 90.0)
    lease._last -= 100.0
    lease.extend()
    with database.read() as session:
        row = session.get_one(SumSessionRow, stored.session_id)
        assert row.lease_expires_at is not None
        assert row.lease_expires_at > database_time(session) + timedelta(seconds=60)
    lease.release()
    assert stored.claim().token != claim.token


def test_the_only_replica_forgets_leases_at_its_start(database: Database) -> None:
    stored = stored_session(database)
    stored.claim()
    with database.write() as session:
        leases.expire_leases(session)
    stored.open(stored.claim())
    assert stored.row().state == "closing"


def test_a_service_that_stops_leaves_the_session_to_another(database: Database) -> None:
    stored = stored_session(database)

    def stop() -> None:
        raise Stopped

    assert _worker(database, check=stop).open_next()
    assert stored.session().state == "opening"
    assert _worker(database).open_next()
    assert np.array_equal(stored.total(), stored.played.expected())


PLACES: list[Place] = ["sum-claim-written", "sum-claim-committed", "sum-block-staged", "sum-total-written"]


@pytest.mark.parametrize("place", [*PLACES, "sum-total-committed"])
@pytest.mark.parametrize("masking", ["pairwise", "none"])
def test_a_worker_that_dies_anywhere_is_followed_by_another(
    database: Database, place: Place, masking: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored = stored_session(database, masking=masking, stops={2: 2})
    _die_at(monkeypatch, place)
    with pytest.raises(Killed):
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
    assert _payloads(database) == {stored.session().total_payload_id}


@pytest.mark.parametrize("place", ["sum-abort-written", "sum-abort-committed"])
def test_an_abort_that_dies_is_repeated(
    database: Database, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored = stored_session(database)
    _spoil(stored)
    _die_at(monkeypatch, place)
    with pytest.raises(Killed):
        _worker(database).open_next()
    monkeypatch.undo()
    stored.expire()
    assert _worker(database).open_next() == (place == "sum-abort-written")
    assert stored.row().reason == "sum-out-of-range"
    assert not stored.messages()


def test_finishing_while_the_sum_is_opened_wins(database: Database) -> None:
    stored = stored_session(database)
    claim = stored.claim()
    with database.write() as session:
        transitions.finish(session, lock_federation(session, stored.federation_id))
    with pytest.raises(LostRace):
        stored.open(claim)
    assert (stored.row().state, stored.row().reason) == ("abandoned", "finished")
    assert (stored.session().state, stored.session().reason) == ("aborted", "finished")
    assert not stored.messages()
    garbage_collection.collect(database, grace=AT_ONCE)
    assert not _payloads(database)


def test_nothing_of_a_live_session_is_collected(database: Database) -> None:
    stored = stored_session(database)
    claim = stored.claim()

    def collect() -> None:
        garbage_collection.collect(database, grace=AT_ONCE)

    collect()
    opening.open_sum(database, claim, block_bytes=160, between=collect)
    assert np.array_equal(stored.total(), stored.played.expected())
    collect()
    assert _payloads(database) == {stored.session().total_payload_id}


@pytest.mark.parametrize("masking", ["pairwise", "none"])
def test_memory_does_not_grow_with_members_and_values(
    fresh_database: Callable[[str], str], masking: str
) -> None:
    peaks = []
    for members, values in ((4, 40_000), (8, 400_000)):
        database = Database(fresh_database("sqlite"))
        stored = stored_session(database, members, values=values, masking=masking)
        claim = stored.claim()
        tracemalloc.start()
        stored.open(claim, block_bytes=2**18)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        assert np.array_equal(stored.total(), stored.played.expected())
        database.close()
    assert peaks[1] < 1.5 * peaks[0]


def _worker(database: Database, check: Callable[[], None] = lambda: None) -> SumWorker:
    return SumWorker(
        database, KEY, lease_seconds=LEASE_SECONDS, block_bytes=2**20, check=check, stopped=Stopped
    )


def _die_at(monkeypatch: pytest.MonkeyPatch, place: Place) -> None:
    def die(label: Place) -> None:
        if label == place:
            raise Killed

    for module in (leases, opening):
        monkeypatch.setattr(module, "may_crash", die)
    monkeypatch.setattr(opening, "_discard", lambda *_: None)  # the dead discard nothing
    assert place in fault_points.PLACES


def _spoil(stored: Stored) -> None:
    """Let member 0 send a vector whose first word is far from every input."""
    modulus = Modulus(stored.played.terms.modulus)
    words = modulus.unpack(stored.played.masked[0]).copy()
    words[0] += 20 * most(16)
    octets = modulus.pack(words)
    with stored.database.write() as session:
        message = session.get_one(SumMessageRow, (stored.session_id, 0, "masked"))
        message.payload_id, message.digest = payloads.store_bytes(session, octets)


def _falsify(stored: Stored, holders: Iterable[int]) -> None:
    """Let holders send other shares of the secrets of member 0."""
    with stored.database.write() as session:
        for holder in holders:
            message = session.get_one(SumMessageRow, (stored.session_id, holder, "unmask"))
            step = UnmaskStep.model_validate_json(message.body or b"")
            false = step.shares[0].model_copy(update={"share": encode(bytes(32) + bytes([holder]))})
            message.body = (
                step.model_copy(update={"shares": [false, *step.shares[1:]]}).model_dump_json().encode()
            )
            message.digest = digest_of(message.body)


def _payloads(database: Database) -> set[int | None]:
    with database.read() as session:
        return set(session.scalars(select(PayloadRow.id)))
