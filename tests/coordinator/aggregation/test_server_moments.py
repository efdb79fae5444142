"""Moments of the coordinator's optimisers: their bytes, their end, and what a crash leaves of them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable

import pytest
from sqlalchemy import select

from coordinator.aggregation import job
from coordinator.db.engine import Database
from coordinator.db.tables.federations import PayloadRow
from coordinator.db.tables.weights import OptimizerMomentsRow
from coordinator.storage.garbage_collection import collect
from tests.coordinator.aggregation.closed_round import close_next, count, publish, served
from tests.coordinator.aggregation.optimised_rounds import ADAM, PQ, SIZE, begun, planned, play, updates
from tests.fault_simulation.settled import AT_ONCE


def test_moments_take_one_payload_until_the_federation_is_finished(database: Database) -> None:
    closed = begun(database, planned(ADAM))
    publish(database)
    for number in (2, 3):
        play(database, closed, number)
        collect(database, grace=AT_ONCE)
        with database.read() as session:
            (row,) = session.execute(
                select(OptimizerMomentsRow.round_number, PayloadRow.bytes).join(
                    PayloadRow, PayloadRow.id == OptimizerMomentsRow.payload_id
                )
            ).all()
        assert tuple(row) == (number, 2 * 4 * SIZE)
    stored = count(database, PayloadRow)
    for number in range(4, 10):
        assert count(database, OptimizerMomentsRow) == 1
        play(database, closed, number)
    assert count(database, OptimizerMomentsRow) == 0
    assert stored > 0


_AGGREGATE = """
import sys
from coordinator.observability import fault_points
fault_points.arm()
from coordinator.aggregation import job
from coordinator.db.engine import Database
database = Database(sys.argv[1])
job.aggregate(database, job.claim_due(database, 0.1), block_bytes=64, between=lambda: None)
"""


@pytest.mark.slow
@pytest.mark.parametrize("place", ["block-staged", "publication-written", "publication-committed"])
def test_a_killed_coordinator_resumes_with_the_same_moments(
    fresh_database: Callable[[str], str], backend: str, place: str
) -> None:
    url = fresh_database(backend)
    database, twin = Database(url), Database(fresh_database(backend))
    scenes = [(one, begun(one, planned(ADAM, "int8"))) for one in (database, twin)]
    for one, _ in scenes:
        publish(one)
    for number in (2, 3):
        for one, closed in scenes:
            close_next(one, closed, dict(zip(closed.clients, updates(number), strict=True)))
        publish(twin)
        environment = {**os.environ, "TESSERA_CRASH": f"{place}:1"}
        killed = subprocess.run([sys.executable, "-c", _AGGREGATE, url], env=environment, check=False)
        assert killed.returncode == -signal.SIGKILL
        while place != "publication-committed":
            claim = job.claim_due(database, 60.0)  # None until the lease of the killed one has run out
            if claim is not None:
                job.aggregate(database, claim, block_bytes=4096, between=lambda: None)
                break
    (_, mine), (_, theirs) = scenes
    for number in (2, 3, 4):
        assert (
            served(database, mine.clients[1], PQ, number).tobytes()
            == served(twin, theirs.clients[1], PQ, number).tobytes()
        )
    database.close()
    twin.close()
