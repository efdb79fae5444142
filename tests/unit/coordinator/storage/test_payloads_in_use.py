"""Automatic moves of payloads that no open round reads, with several replicas."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Iterator
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sqlalchemy import func, select

from benchmarks.s3_server import S3Server
from coordinator.db.engine import Database, database_time
from coordinator.db.tables.federations import FederationRow, PayloadRow
from coordinator.storage import object_store, payload_moves, payloads, server_key
from schemas.maths.adapter import Layout
from schemas.messages.federations import FederationPlan
from tests.scene.threads import run_at_once
from tests.unit.coordinator.aggregation.closed_round import (
    Closed,
    Sent,
    close_next,
    close_round,
    plan,
    publish,
    round_row,
    served_values,
)
from tests.unit.coordinator.storage.copies import KEY

pytest.importorskip("obstore")

NOW = timedelta(seconds=-5)
REPLICAS = 3
LORA: Layout = {"b0.q.A": (2, 6), "b0.q.B": (6, 2)}
FRAMED: Layout = {"b0.q.P": (4, 4), "b0.q.Q": (4,)}


def move_settled_payloads(database: Database, store: str, smallest: int = 1) -> int:
    """Move the payloads that a coordinator moves, whatever their age; return their number."""
    return len(list(payload_moves.move(database, store, smallest=smallest, min_age=NOW)))


def random_update(layout: Layout, seed: int) -> Sent:
    rng = np.random.default_rng(seed)
    return Sent.of({name: rng.normal(size=shape) for name, shape in layout.items()})


def placed_count(database: Database) -> int:
    with database.read() as session:
        query = select(func.count()).select_from(PayloadRow).where(PayloadRow.place.is_not(None))
        return session.scalar(query) or 0


def finish(database: Database, closed: Closed) -> None:
    with database.write() as session:
        row = session.get_one(FederationRow, closed.federation_id)
        row.state, row.finished_at = "finished", database_time(session)


@pytest.mark.parametrize(
    ("strategy", "layout"),
    [("fedavg", FRAMED), ("fedmosaic", FRAMED), ("fedex_lora", LORA), ("flora", LORA)],
)
def test_rounds_need_no_store(database: Database, tmp_path: Path, strategy: str, layout: Layout) -> None:
    server_key.load(database, KEY)
    folder = tmp_path / "store"
    store = f"file://{folder}"
    closed = close_round(database, plan(strategy), [random_update(layout, seed) for seed in range(3)])
    assert move_settled_payloads(database, store) == 0
    publish(database)
    moved = 0
    for number, away in ((2, 2), (3, 0)):
        present = [client for place, client in enumerate(closed.clients) if place != away]
        close_next(
            database, closed, {c: random_update(layout, 10 * number + i) for i, c in enumerate(present)}
        )
        moved += move_settled_payloads(database, store)
        with_store = folder.rename(tmp_path / "away") if folder.exists() else None
        folder.write_text("no folder, so that every read fails")
        publish(database)
        assert round_row(database, closed, number).state == "published"
        folder.unlink()
        if with_store is not None:
            with_store.rename(folder)
    assert moved > 0
    weights = [served_values(database, client, layout, 4) for client in closed.clients]
    finish(database, closed)
    before = placed_count(database)
    assert move_settled_payloads(database, store) > 0
    assert placed_count(database) > before
    for client, values in zip(closed.clients, weights, strict=True):
        assert np.array_equal(served_values(database, client, layout, 4), values)


def test_concurrent_moves_of_replicas_lose_no_payload(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server_key.load(database, KEY)
    bodies = [os.urandom(payload_moves.SMALLEST + number) for number in range(4)]
    with database.write() as session:
        ids = [payloads.store_bytes(session, body)[0] for body in bodies]
    store, all_have_put = f"file://{tmp_path}", threading.Barrier(REPLICAS, timeout=60)
    put = object_store.put

    def put_together(place: str, content: Iterable[bytes]) -> None:
        put(place, content)
        all_have_put.wait()

    monkeypatch.setattr(object_store, "put", put_together)

    move, moved = payload_moves.move, list[int]()

    def counted_move(*arguments: Any, **options: Any) -> Iterator[int]:
        for size in move(*arguments, **options):
            moved.append(size)
            yield size

    monkeypatch.setattr(payload_moves, "move", counted_move)

    def replica() -> None:
        with closing(Database(database.url)) as connection:
            payload_moves.move_settled(connection, store, lambda: False, min_age=NOW)

    assert not run_at_once(dict.fromkeys(range(REPLICAS), replica), barrier=all_have_put)
    assert sorted(moved) == sorted(map(len, bodies))  # each by one replica
    assert placed_count(database) == len(bodies)
    assert payload_moves.sweep(database, store, unused=NOW) == (REPLICAS - 1) * len(bodies)
    assert not list(payload_moves.missing(database))
    for payload_id, body in zip(ids, bodies, strict=True):
        assert b"".join(payloads.stream(database, payload_id, 0, len(body))) == body


def eight_silos(database: Database, federation: FederationPlan) -> Closed:
    """Close a round of eight updates of 8 MiB."""
    layout: Layout = {"b0.q.P": (2**10, 2**11)}
    updates = [Sent(layout, np.random.default_rng(i).random(2**21, np.float32)) for i in range(8)]
    return close_round(database, federation, updates)


@pytest.mark.s3
@pytest.mark.slow
@pytest.mark.parametrize("by_hand", [True, False])
def test_requests_of_a_round_of_eight_silos(
    sqlite_database: Database, s3: S3Server, by_hand: bool, record_property: Any
) -> None:
    database = sqlite_database
    server_key.load(database, KEY)
    closed = eight_silos(database, plan("fedavg"))
    moved = list(payload_moves.move(database, s3.bucket, min_age=None if by_hand else NOW))
    assert len(moved) == (8 if by_hand else 0)
    before = s3.requests("GET")
    publish(database, block_bytes=192 * 2**20)
    record_property("GET requests of the aggregation", s3.requests("GET") - before)
    assert round_row(database, closed).state == "published"
    assert (s3.requests("GET") - before) == (64 if by_hand else 0)
