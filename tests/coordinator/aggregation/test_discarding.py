"""What will not be given to anybody goes, without shutting others out and without hiding why."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import numpy as np
import pytest
from sqlalchemy import event, update
from sqlalchemy.exc import OperationalError

from coordinator.aggregation.mixing import mix
from coordinator.aggregation.output_writer import Receiver, StagedOutput, discard
from coordinator.aggregation.state_reader import StoredState
from coordinator.db.engine import Database
from coordinator.db.tables.federations import PayloadRow, RoundRow
from coordinator.storage import garbage_collection, payloads
from coordinator.strategies.base import ClientFacts, Cohort, Weighing, modules_of
from tests.coordinator.aggregation.closed_round import count, publish, simple

LAYOUT = {"b0.q.Q": (30,)}


class Stopped(Exception):
    """Ends an aggregation between two blocks."""


def mixed(database: Database, weights: Sequence[Sequence[float]]) -> dict[str, StagedOutput]:
    """Stage the bodies of clients that sent 0, 1, 2 ... by these weights."""
    states, facts = {}, []
    for i in range(len(weights)):
        with database.write() as session:
            payload_id, _ = payloads.store_bytes(session, np.full(30, i, "<f4").tobytes())
        states[f"c{i}"] = StoredState(payload_id, 0, LAYOUT)
        facts.append(
            ClientFacts(
                client=f"c{i}",
                base_model="s",
                alignment_set=None,
                modules=modules_of(LAYOUT),
                age=0,
                examples=1,
                sketch=None,
                sketch_model="s",
                is_source=True,
            )
        )
    weighing = Weighing(Cohort(facts, 1.0), np.array(weights), np.full((len(weights),) * 2, np.nan))
    receivers = [Receiver(client, LAYOUT, client.encode()) for client in states]
    return mix(database, weighing, states, receivers, block_bytes=4096, between=lambda: None)


def test_bodies_go_one_by_one_and_others_write_in_between(database: Database) -> None:
    made = mixed(database, np.eye(4).tolist())
    assert count(database, PayloadRow) == 8
    commits: list[object] = []
    event.listen(database.engine, "commit", commits.append)
    discard(database, made.values())
    assert len(commits) == 4
    assert count(database, PayloadRow) == 4


def test_receivers_that_share_a_body_lose_it_once_and_nobody_elses(database: Database) -> None:
    made = mixed(database, [[0.5, 0.5, 0.0], [0.5, 0.5, 0.0], [0.0, 0.0, 1.0]])
    assert made["c0"].staged is made["c1"].staged
    discard(database, [made["c0"], made["c1"]])
    with database.write() as session:
        kept = made["c2"].staged.adopt(session)
    discard(database, made.values())  # what was adopted stays
    with database.read() as session:
        assert payloads.read(session, kept, 0, 2) == b"c2"
    assert count(database, PayloadRow) == 4


def test_a_database_that_fails_meanwhile_hides_nothing_and_the_rest_is_collected(
    database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    simple(database)

    def fails(_: Any, __: Any, statement: str, *___: Any) -> None:
        if statement.startswith("DELETE FROM payloads"):
            raise OperationalError(statement, {}, Exception("gone"))

    def between() -> None:
        event.listen(database.engine, "before_cursor_execute", fails)
        raise Stopped

    with pytest.raises(Stopped):
        publish(database, between)
    assert "discarding-failed" in caplog.text
    event.remove(database.engine, "before_cursor_execute", fails)
    assert count(database, PayloadRow) == 3 + 1
    with database.write() as session:
        session.execute(update(RoundRow).values(state="abandoned"))
    assert garbage_collection.collect(database, grace=timedelta(seconds=-5)) == 1
