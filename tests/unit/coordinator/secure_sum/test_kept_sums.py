"""Totals and joint models of pruned rounds, and live sessions in a backup."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import numpy as np
from sqlalchemy import select

from coordinator.aggregation import retention
from coordinator.db.backup import copy
from coordinator.db.engine import Database, database_time
from coordinator.db.tables.secure_sum import JointModelRow
from coordinator.rounds import store as rounds
from coordinator.secure_sum import leases
from coordinator.secure_sum.leases import claim_due
from coordinator.storage import garbage_collection, payloads
from tests.scene.database import payload_ids
from tests.unit.coordinator.secure_sum.stored import LEASE_SECONDS, ROUND, Stored, stored_session

AT_ONCE = timedelta(days=-1)


def test_totals_and_old_joint_models_are_pruned(database: Database) -> None:
    stored = stored_session(database)
    stored.open()
    total = stored.session().total_payload_id
    joint = _publish(stored, ROUND)
    for number in range(ROUND + 1, ROUND + 4):
        joint |= _publish(stored, number)
    assert retention.prune_rounds(database, 4) == 0
    assert stored.session().total_payload_id == total
    _prune(database, 2)
    assert stored.session().total_payload_id is None
    assert _joint_models(database) == {n: joint[n] if n >= ROUND + 2 else None for n in joint}
    garbage_collection.collect(database, grace=AT_ONCE)
    assert payload_ids(database) == {joint[ROUND + 2], joint[ROUND + 3]}


def test_pruning_keeps_the_last_joint_model(database: Database) -> None:
    stored = stored_session(database)
    stored.open()
    joint = _publish(stored, ROUND)
    for number in range(ROUND + 1, ROUND + 4):
        _publish(stored, number, has_model=False)
    _prune(database, 1)
    assert _joint_models(database) == joint


def test_a_live_session_is_not_pruned(database: Database) -> None:
    stored = stored_session(database)
    with database.write() as session:
        for number in (1, 2):
            row = rounds.open_round(session, stored.federation_id, number, database_time(session))
            row.state = "published"
    _prune(database, 1)
    garbage_collection.collect(database, grace=AT_ONCE)
    stored.open()
    assert np.array_equal(stored.total(), stored.played.expected())


def test_backups_of_live_sessions_open_their_sums(tmp_path: Path, database: Database) -> None:
    if not database.is_sqlite:
        return  # it has tools of its own
    stored = stored_session(database)
    stored.claim()
    copy(database, tmp_path / "backup.db", progress=lambda *_: None)
    stored.database = Database(f"sqlite:///{tmp_path / 'backup.db'}")
    try:
        assert claim_due(stored.database, LEASE_SECONDS) is None
        with stored.database.write() as session:  # as the service does at its start
            leases.expire_leases(session)
        stored.open()
        assert np.array_equal(stored.total(), stored.played.expected())
        assert not stored.messages()
    finally:
        stored.database.close()


def _publish(stored: Stored, number: int, *, has_model: bool = True) -> dict[int, int]:
    """Publish a round with a joint model; return the payload of the model by round."""
    with stored.database.write() as session:
        now = database_time(session)
        if number == ROUND:
            row = rounds.get_round(session, stored.federation_id, number)
        else:
            row = rounds.open_round(session, stored.federation_id, number, now)
        row.state, row.ended_at = "published", now
        if not has_model:
            return {}
        payload_id, digest = payloads.store_bytes(session, bytes([number]) * 16)
        session.add(
            JointModelRow(
                federation_id=stored.federation_id,
                round_number=number,
                layout=[],
                digest=digest,
                payload_id=payload_id,
                losses={},
            )
        )
        return {number: payload_id}


def _prune(database: Database, keep_rounds: int) -> None:
    while retention.prune_rounds(database, keep_rounds):
        pass


def _joint_models(database: Database) -> dict[int, int | None]:
    with database.read() as session:
        return {row.round_number: row.payload_id for row in session.scalars(select(JointModelRow))}
