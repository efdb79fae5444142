"""Discarded staged bodies: short transactions, shared bodies, and errors of the database."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import numpy as np
import pytest
from sqlalchemy import event, update
from sqlalchemy.exc import OperationalError

from coordinator.aggregation.combining import mix
from coordinator.aggregation.output_writer import Receiver
from coordinator.aggregation.part import StagedWeights, StoredState
from coordinator.db.engine import Database
from coordinator.db.tables.federations import PayloadRow, RoundRow
from coordinator.storage import garbage_collection, payloads
from coordinator.storage.staging import Staging
from coordinator.strategies.base import ClientFacts, Cohort, Weighing, modules_of
from tests.scene.database import row_count
from tests.unit.coordinator.aggregation.closed_round import publish, simple

LAYOUT = {"b0.q.Q": (30,)}


class AggregationStopped(Exception):
    """Ends an aggregation between two blocks."""


def stage_mixtures(staging: Staging, weights: Sequence[Sequence[float]]) -> dict[str, StagedWeights]:
    """Stage the bodies of clients that sent 0, 1, 2 ... by these weights."""
    states, facts = {}, []
    for i in range(len(weights)):
        with staging.database.write() as session:
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
    return mix(staging, weighing, states, receivers)


def test_staged_bodies_are_deleted_in_separate_transactions(database: Database) -> None:
    commits: list[object] = []
    with Staging(database, lambda: None, 4096) as staging:
        stage_mixtures(staging, np.eye(4).tolist())
        assert row_count(database, PayloadRow) == 8
        event.listen(database.engine, "commit", commits.append)
    assert len(commits) == 4
    assert row_count(database, PayloadRow) == 4


def test_discarding_a_shared_body_deletes_it_once(database: Database) -> None:
    with Staging(database, lambda: None, 4096) as staging:
        staged = stage_mixtures(staging, [[0.5, 0.5, 0.0], [0.5, 0.5, 0.0], [0.0, 0.0, 1.0]])
        assert staged["c0"].staged is staged["c1"].staged
        staging.discard([staged["c0"].staged, staged["c1"].staged])
        with database.write() as session:
            adopted = staging.adopt(session)
    assert [*adopted] == [staged["c2"].staged.payload_id]
    with database.read() as session:
        assert payloads.read(session, *adopted.values(), 0, 2) == b"c2"
    assert row_count(database, PayloadRow) == 4


@pytest.mark.parametrize("is_committed", [False, True])
def test_staged_bodies_are_adopted_by_a_commit(is_committed: bool, database: Database) -> None:
    def job() -> None:
        with Staging(database, lambda: None, 4096) as staging:
            staging.stage_body(b"body")
            with database.write() as session:
                staging.adopt(session)
                if not is_committed:
                    raise AggregationStopped
            raise AggregationStopped

    with pytest.raises(AggregationStopped):
        job()
    assert row_count(database, PayloadRow) == is_committed


def test_a_failed_discard_is_logged_and_collected_later(
    database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    simple(database)

    def fails(_: Any, __: Any, statement: str, *___: Any) -> None:
        if statement.startswith("DELETE FROM payloads"):
            raise OperationalError(statement, {}, Exception("gone"))

    def between() -> None:
        event.listen(database.engine, "before_cursor_execute", fails)
        raise AggregationStopped

    with pytest.raises(AggregationStopped):
        publish(database, between)
    assert "discarding-failed" in caplog.text
    event.remove(database.engine, "before_cursor_execute", fails)
    assert row_count(database, PayloadRow) == 3 + 1
    with database.write() as session:
        session.execute(update(RoundRow).values(state="abandoned"))
    assert garbage_collection.collect(database, grace=timedelta(seconds=-5)) == 1
