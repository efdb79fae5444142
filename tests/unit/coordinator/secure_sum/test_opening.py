"""Opening a sum: the total equals the sum of the counted inputs, or the round has none."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable

import numpy as np
import pytest
from sqlalchemy import select

from coordinator.db.engine import Database
from coordinator.db.federation_lock import lock_federation
from coordinator.db.tables.identity import AuditRow
from coordinator.db.tables.secure_sum import SumMessageRow, SumSessionRow
from coordinator.federations.store import revoke
from coordinator.rounds import transitions
from coordinator.rounds.store import LostRace
from coordinator.secure_sum import opening, sessions, store
from coordinator.secure_sum.leases import claim_due
from coordinator.secure_sum.totals import summed_total
from coordinator.storage import garbage_collection
from tests.scene.database import payload_ids
from tests.unit.coordinator.secure_sum.stored import (
    AT_ONCE,
    KEY,
    LEASE_SECONDS,
    ROUND,
    falsify,
    spoil,
    stored_session,
    worker,
)


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


def test_the_last_step_decides_whether_members_are_counted(database: Database) -> None:
    stops = {0: 1, 1: 2, 2: 3, 3: 4}
    stored = stored_session(database, 14, stops=stops)
    assert stored.open() == 12
    assert np.array_equal(stored.total(), stored.played.expected())
    dropped = {position for position, state in stored.states().items() if state == "dropped"}
    assert dropped == {0, 1}
    assert set(stored.states().values()) == {"arrived", "dropped"}
    with database.read() as session:
        assert len(summed_total(session, stored.round_id).counted) == 12


def test_a_member_revoked_after_its_vector_is_counted(database: Database) -> None:
    stored = stored_session(database)
    with database.write() as session:
        lock_federation(session, stored.federation_id)
        assert revoke(session, stored.federation_id, "cli_004")
    stored.open()
    assert np.array_equal(stored.total(), stored.played.expected())
    assert stored.states()[4] == "arrived"


@pytest.mark.parametrize("masking", ["pairwise", "none"])
def test_an_out_of_range_sum_pauses_the_federation(database: Database, masking: str) -> None:
    stored = stored_session(database, masking=masking)
    spoil(stored)
    assert worker(database).open_next()
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
    assert not payload_ids(database)


def test_inconsistent_shares_start_another_session(database: Database) -> None:
    """Those who sent their shares are spent; here the others are enough for another session."""
    stored = stored_session(database, 13, stops={n: 4 for n in range(4)})
    falsify(stored, holders=range(4, 13))
    assert worker(database).open_next()
    assert (stored.session().state, stored.session().reason) == ("aborted", opening.SHARES_INCONSISTENT)
    assert stored.row().state == "summing"
    with database.read() as session:
        following = session.scalars(select(SumSessionRow).where(SumSessionRow.number == 2)).one()
    assert following.state == "keys"
    assert [member["client"] for member in following.terms["members"]] == [f"cli_{n:03}" for n in range(4)]
    assert not stored.messages()
    assert not worker(database).open_next()


def test_a_sum_opens_despite_one_false_share(database: Database) -> None:
    stored = stored_session(database)
    falsify(stored, holders=[0])
    stored.open()
    assert np.array_equal(stored.total(), stored.played.expected())


def test_a_round_is_abandoned_without_another_session(database: Database) -> None:
    stored = stored_session(database, number=3)
    falsify(stored, holders=range(5))
    assert worker(database).open_next()
    assert (stored.row().state, stored.row().reason) == ("abandoned", "secure-sum-failed")
    assert stored.federation().state == "paused"


def test_an_unreadable_session_is_aborted(database: Database) -> None:
    stored = stored_session(database, number=3)
    with database.write() as session:
        message = session.get_one(SumMessageRow, (stored.session_id, 0, "shares"))
        message.body = b"{}"
    assert worker(database).open_next()
    assert (stored.session().state, stored.session().reason) == ("aborted", opening.OPENING_FAILED)


def test_finishing_the_federation_overrides_an_opening_sum(database: Database) -> None:
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
    assert not payload_ids(database)


def test_payloads_of_live_sessions_are_not_collected(database: Database) -> None:
    stored = stored_session(database)
    claim = stored.claim()

    def collect() -> None:
        garbage_collection.collect(database, grace=AT_ONCE)

    collect()
    opening.open_sum(database, claim, KEY, block_bytes=160, between=collect)
    assert np.array_equal(stored.total(), stored.played.expected())
    collect()
    assert payload_ids(database) == {stored.session().total_payload_id}


@pytest.mark.slow
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


@pytest.mark.parametrize("phase", store.LIVE)
def test_finishing_a_federation_deletes_messages_of_its_session(database: Database, phase: str) -> None:
    stored = stored_session(database)
    with database.write() as session:
        session.get_one(SumSessionRow, stored.session_id).state = phase
    before = stored.federation().sum_phase
    with database.write() as session:
        transitions.finish(session, lock_federation(session, stored.federation_id))
    assert (stored.session().state, stored.session().reason) == ("aborted", "finished")
    assert stored.session().ended_at is not None
    assert not stored.messages()
    assert stored.federation().sum_phase > before, "members wait for another phase"
    assert claim_due(database, LEASE_SECONDS) is None


def test_sessions_of_an_earlier_version_are_aborted(database: Database) -> None:
    """After an upgrade its masks could not be removed; the round is abandoned, and the federation pauses."""
    stored = stored_session(database)
    with database.write() as session:
        row = session.get_one(SumSessionRow, stored.session_id)
        row.terms = row.terms | {"format": "secure-sum-2"}
        row.terms_hash = f"sha256:{'e' * 64}"
    with pytest.raises(LostRace):
        stored.open()
    assert sessions.drive(database, KEY)
    assert not sessions.drive(database, KEY)
    assert (stored.session().state, stored.session().reason) == ("aborted", sessions.EARLIER_VERSION)
    assert stored.row().state == "abandoned"
    assert stored.federation().state == "paused"
    assert not stored.messages()
