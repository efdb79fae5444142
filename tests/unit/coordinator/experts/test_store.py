"""Stored banks: read back unchanged, and revisions that a round or an expert needs are kept."""

from __future__ import annotations

from dataclasses import asdict, replace
from datetime import timedelta

import pytest
from sqlalchemy import select, update
from sqlalchemy.exc import IntegrityError

from coordinator.aggregation import retention
from coordinator.db.engine import Database, database_time
from coordinator.db.tables.experts import BankRoundRow, ExpertRevisionRow, ExpertRow
from coordinator.db.tables.federations import PayloadRow
from coordinator.db.tables.secure_sum import JointModelRow
from coordinator.experts import store
from coordinator.experts.bank import Bank, RoundCounts, RoundSums, new_bank
from coordinator.experts.current_bank import current_bank
from coordinator.experts.registry import after_round, is_birth_due
from coordinator.experts.store import Revision
from coordinator.rounds import store as rounds
from coordinator.storage import garbage_collection, payloads
from coordinator.strategies.bank_rules import Rules
from coordinator.strategies.opening import open_plan
from schemas.messages.federations import FederationPlan
from tests.scene.stored_bank import ALIKE, PLAN, store_bank, store_new
from tests.unit.coordinator.rows import federation_row

FEDERATION = "fed_bank"
RULES = Rules()


def bank_of(database: Database, count: int = 3) -> Bank:
    bank = new_bank(count, RULES, 0)
    with database.write() as session:
        session.add(federation_row(FEDERATION, database_time(session)))
        session.flush()
        store_new(session, FEDERATION, bank)
    return bank


def play_round(database: Database, number: int, users: dict[int, int], rejects: int = 0) -> Bank:
    """Apply a round to the stored bank, in which experts 1 and 2 are alike."""
    with database.write() as session:
        bank = store.load(session, FEDERATION)
        assert bank is not None
        counts = RoundCounts(15, users, rejects)
        newborn = is_birth_due(bank, RULES, counts, 0, number)
        responsibilities = {expert: float(count) for expert, count in users.items()}
        sums = RoundSums(counts, responsibilities, newborn, ALIKE)
        outcome = after_round(bank, RULES, sums, number)
        store.store_round(session, FEDERATION, number, sums, outcome)
    return outcome.bank


def loaded(database: Database) -> Bank | None:
    with database.read() as session:
        return store.load(session, FEDERATION)


def test_a_bank_and_its_memory_are_read_back(database: Database) -> None:
    assert loaded(database) is None
    assert bank_of(database) == loaded(database)
    for number, rejects in ((4, 5), (5, 5), (6, 0)):
        after = play_round(database, number, {1: 7, 2: 4, 3: 4}, rejects)
        assert loaded(database) == after
    assert [expert.status for expert in after.experts] == ["active", "merged", "active", "active"]
    with database.read() as session:
        rows = session.scalars(select(BankRoundRow).order_by(BankRoundRow.round_number)).all()
        changes = [event for row in rows for event in row.events]
    assert [(event["change"], event["expert"], event["peer"]) for event in changes] == [
        ("born", 4, 0),
        ("merged", 2, 1),
    ]
    assert changes[0]["reason"].startswith("5 of 15 members fit no expert")
    assert changes[1]["numbers"]["users"] == 4


def test_a_round_is_stored_once(database: Database) -> None:
    bank_of(database)
    play_round(database, 1, {1: 5})
    with pytest.raises(IntegrityError):
        play_round(database, 1, {1: 5})


def revise(database: Database, expert: int, number: int) -> int:
    with database.write() as session:
        payload_id, digest = payloads.store_bytes(session, bytes([expert, number]) * 8)
        revision = Revision(expert, number, payload_id, digest, 16, contributors=5)
        store.add_revision(session, FEDERATION, revision)
    return payload_id


def test_rounds_begin_with_the_newest_earlier_revisions(database: Database) -> None:
    bank_of(database)
    stored = {place: revise(database, *place) for place in ((1, 0), (2, 0), (1, 2), (2, 3))}
    with database.read() as session:
        newest = {until: store.revisions(session, FEDERATION, until) for until in (0, 2, 9)}
    states = {
        until: {expert: revision.payload_id for expert, revision in of.items()}
        for until, of in newest.items()
    }
    assert states == {
        0: {1: stored[1, 0], 2: stored[2, 0]},
        2: {1: stored[1, 2], 2: stored[2, 0]},
        9: {1: stored[1, 2], 2: stored[2, 3]},
    }
    with pytest.raises(IntegrityError):
        revise(database, 9, 1)  # no such expert


def test_pruning_keeps_the_last_revision_of_experts(database: Database) -> None:
    bank = bank_of(database)
    places = ((1, 0), (1, 2), (1, 3), (1, 5), (2, 0), (3, 1))  # 2 and 3 do not change any more
    stored = {place: revise(database, *place) for place in places}
    with database.write() as session:
        archived = replace(bank[3], status="archived", ended=2, prior=0.0)
        session.merge(ExpertRow(federation_id=FEDERATION, **asdict(archived)))
        for number in range(1, 6):
            row = rounds.open_round(session, FEDERATION, number, database_time(session))
            row.state, row.ended_at = "published", database_time(session)
    while retention.prune_rounds(database, 2):  # rounds 4 and 5 are kept
        pass
    garbage_collection.collect(database, grace=timedelta(days=-1))
    remaining = {stored[place] for place in ((1, 3), (1, 5), (2, 0), (3, 1))}
    with database.read() as session:
        rows = session.scalars(select(ExpertRevisionRow.payload_id))
        assert {payload_id for payload_id in rows if payload_id is not None} == remaining
        assert set(session.scalars(select(PayloadRow.id))) == remaining
        assert store.revisions(session, FEDERATION, 4)[1].payload_id == stored[1, 3]
        with pytest.raises(LookupError, match="retention"):
            store.revisions(session, FEDERATION, 2)


def test_active_experts_of_voided_values_restart(database: Database) -> None:
    plan = FederationPlan.model_validate({"name": "bank", **PLAN, "rounds": {"min_clients": 5, "total": 20}})
    with database.write() as session:
        session.add(federation_row(FEDERATION, database_time(session)))
    revision = store_bank(database, FEDERATION)[-1].revision
    with database.read() as session:
        before = current_bank(session, FEDERATION, open_plan(plan))
    assert before is not None
    assert (before.since, before.revisions) == (0, {1: revision})
    with database.write() as session:
        session.execute(update(JointModelRow).values(is_void=True))
        void = current_bank(session, FEDERATION, open_plan(plan))
    assert void is not None
    assert (void.index.since, void.revisions) == (6, {})
    assert void.experts == before.experts == (1, 3, 5)
    grace_until = 6 + 7 + void.rules.grace  # half of the 14 rounds that are left explore
    for expert in void.bank.active:
        assert (expert.prior, expert.utilisation, expert.strikes) == (1 / 3, None, 0)
        assert expert.grace_until == grace_until
    assert [e for e in void.bank.experts if e.status != "active"] == [
        e for e in before.bank.experts if e.status != "active"
    ]
