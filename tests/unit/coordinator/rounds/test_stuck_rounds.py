"""A round is stuck after its deadline, or in a state without one."""

from __future__ import annotations

from datetime import timedelta

import pytest
from sqlalchemy import update

from coordinator.db.engine import Database, database_time, stored_bytes
from coordinator.db.tables.federations import FederationRow, RoundRow
from coordinator.rounds.stuck_rounds import stuck_rounds
from tests.unit.coordinator.aggregation.closed_round import simple

HOUR = 3600.0


@pytest.mark.parametrize(
    ("state", "times", "is_stuck"),
    [
        ("open", {"opened_at": 61}, True),
        ("open", {"opened_at": 59}, False),
        ("collecting", {"opened_at": 300, "collecting_at": 200, "deadline": 61}, True),
        ("collecting", {"opened_at": 300, "collecting_at": 200, "deadline": -10}, False),
        ("summing", {"deadline": 90, "summing_at": 61}, True),
        ("closing", {"deadline": 90, "closing_at": 59}, False),
        ("aggregating", {"deadline": 90, "closing_at": 80, "aggregating_at": 61}, True),
        ("published", {"opened_at": 600, "deadline": 500}, False),
        ("abandoned", {"opened_at": 600, "deadline": 500}, False),
    ],
)
def test_a_round_is_stuck_after_an_overdue_hour(
    database: Database, state: str, times: dict[str, int], is_stuck: bool
) -> None:
    """Times are minutes ago."""
    simple(database)
    with database.write() as session:
        now = database_time(session)
        moments = {column: now - timedelta(minutes=minutes) for column, minutes in times.items()}
        session.execute(update(RoundRow).values(state=state, **moments))
    with database.read() as session:
        assert [row.state for row in stuck_rounds(session, now, HOUR)] == [state] * is_stuck


def test_a_paused_federations_open_round_is_not_stuck(database: Database) -> None:
    simple(database)
    with database.write() as session:
        long_ago = database_time(session) - timedelta(days=1)
        session.execute(update(FederationRow).values(state="paused"))
        session.execute(update(RoundRow).values(closing_at=long_ago, opened_at=long_ago))
        now = database_time(session)
        assert len(stuck_rounds(session, now, HOUR)) == 1
        session.execute(update(RoundRow).values(state="open"))
        assert not stuck_rounds(session, now, HOUR)


def test_stored_bytes_measures_the_database(database: Database) -> None:
    with database.read() as session:
        assert 100_000 < stored_bytes(session) < 100_000_000
