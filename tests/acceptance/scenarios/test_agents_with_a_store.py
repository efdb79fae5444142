"""Agents whose coordinator moves all tensors to S3 at once."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from sqlalchemy import func, select

from benchmarks.s3_server import S3Server
from coordinator.db.engine import Database
from coordinator.db.tables.federations import PayloadRow
from coordinator.storage import payload_moves
from tests.acceptance.scenarios.test_agents import plan
from tests.scene.agent_processes import prepare_agent
from tests.scene.coordinator import Served

pytestmark = [pytest.mark.s3, pytest.mark.long, pytest.mark.timeout(600)]


@contextmanager
def moving_at_once(database_url: str, store: str) -> Iterator[None]:
    """Move payloads of any age and size to a store, for the duration of a block and once more."""
    stopped, failures = threading.Event(), list[Exception]()

    def keep_moving() -> None:
        with closing(Database(database_url)) as database:
            try:
                while not stopped.wait(0.05):
                    for _ in payload_moves.move(database, store, smallest=1):
                        pass
            except Exception as error:
                failures.append(error)

    thread = threading.Thread(target=keep_moving, name="mover", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stopped.set()
        thread.join()
    assert not failures


def test_agents_receive_final_weights_from_s3(
    sqlite_database: Database, serve: Callable[..., Served], s3: S3Server, tmp_path: Path
) -> None:
    url = str(sqlite_database.url)
    served = serve(url, tick_seconds=0.05, retry_seconds=0.2, payload_store=s3.bucket)
    federation_id = served.federation(**plan())
    served.start_federation(federation_id)
    names = ("aster", "birch")
    agents = [
        prepare_agent(tmp_path, name, served.url, served.enrolment_token(federation_id, name))
        for name in names
    ]
    with moving_at_once(url, s3.bucket):
        for agent in agents:
            agent.start()
        for agent in agents:
            agent.wait()
    rounds = served.rounds(federation_id)
    assert [view["state"] for view in rounds] == ["published"] * 3
    assert all(view["counts"]["arrived"] == 2 for view in rounds)
    for agent in agents:
        assert next((agent.folder / "state").glob("*/final_weights.safetensors")).stat().st_size > 1000
    assert s3.requests("GET") > s3.requests("PUT") > 0  # each is read back, and some are downloaded
    assert not list(payload_moves.missing(sqlite_database))
    list(payload_moves.move(sqlite_database, s3.bucket, smallest=1))
    with sqlite_database.read() as session:
        in_rows = select(func.count()).select_from(PayloadRow).where(PayloadRow.place.is_(None))
        assert session.scalar(in_rows) == 0
