"""Whether a round waits, as checked with each update, against its step from all facts."""

from __future__ import annotations

from datetime import timedelta
from itertools import product

import pytest

from coordinator.db.engine import Database, database_time
from coordinator.db.tables.federations import FederationRow
from coordinator.federations import store as federations
from coordinator.federations.store import plan_of
from coordinator.rounds import store as rounds
from coordinator.rounds.lifecycle import next_state
from tests.scene.plans import federation_plan
from tests.unit.coordinator.rows import client_row, participation_row


@pytest.fixture
def federation(database: Database) -> FederationRow:
    """A federation with two clients, and one that was shut out."""
    plan = federation_plan(rounds={"min_clients": 2, "total": 100})
    with database.write() as session:
        row = federations.create(session, plan)
        for i, standing in enumerate(("enrolled", "enrolled", "revoked")):
            session.add(client_row(row.id, f"{row.id}-{i}", database_time(session), state=standing))
        return row


PLACES = list(
    product((None, "joined", "arrived"), (None, "joined", "arrived"), (None, "joined", "arrived", "revoked"))
)
"""The parts of two enrolled clients and of a revoked one."""


def test_a_waiting_round_has_no_next_step(database: Database, federation: FederationRow) -> None:
    statuses = set()
    for number, parts in enumerate(PLACES, 1):
        with database.write() as session:
            moment = database_time(session)
            row = rounds.open_round(session, federation.id, number, moment)
            row.state, row.collecting_at = "collecting", moment
            row.deadline = moment + timedelta(seconds=60)
            for i, part in enumerate(parts):
                if part is not None:
                    session.add(participation_row(row.id, f"{federation.id}-{i}", part, moment))
            session.flush()
            facts = rounds.facts(session, row, plan_of(federation))
            waits = rounds.is_waiting(session, row, moment)
            assert waits == (facts.waiting > 0), parts
            assert not (waits and next_state(facts, moment)), parts
            assert not rounds.is_waiting(session, row, row.deadline), "at its deadline all facts are asked"
            statuses.add((waits, next_state(facts, moment) is not None))
            row.state = "abandoned"
    assert statuses == {(True, False), (False, False), (False, True)}


@pytest.mark.parametrize("state", ["open", "closing", "aggregating", "published", "abandoned"])
def test_rounds_wait_only_while_collecting(database: Database, federation: FederationRow, state: str) -> None:
    with database.write() as session:
        moment = database_time(session)
        row = rounds.open_round(session, federation.id, 1, moment)
        row.state, row.deadline = state, moment + timedelta(seconds=60)
        session.add(participation_row(row.id, f"{federation.id}-0", "joined", moment))
        session.flush()
        assert not rounds.is_waiting(session, row, moment)
