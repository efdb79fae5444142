"""Stored coded weights: encoded once, then reused for repeated and concurrent requests."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from sqlalchemy import delete, text

from coordinator.aggregation import retention
from coordinator.db.tables.federations import CodedWeightsRow
from coordinator.http.limits import concurrency
from coordinator.http.limits.concurrency import codec_slot
from coordinator.storage import garbage_collection
from tests.scene.coded_weights import LAYOUT, PLAN, request_weights
from tests.scene.coordinator import Served, Silo, coordinator_fixture, slug
from tests.scene.rounds import deliver, join, plan, put, running, update_body, url, wait_for
from tests.scene.tensors import random_tensors

Rows = Callable[[str, str], list[tuple[Any, ...]]]
STORED_CODED = "SELECT round_number, recipe FROM coded_weights ORDER BY round_number, recipe"


def play_until(served: Served, number: int) -> tuple[str, list[Silo]]:
    """Deliver for two clients until they can ask for weights of this round."""
    federation_id, silos = running(served, **plan(rounds={"total": 9}, adapter=PLAN["adapter"]))
    for done in range(1, number):
        for seed, silo in enumerate(silos):
            deliver(silo, done, random_tensors(LAYOUT, 10 * done + seed))
        wait_for(served, federation_id, done, "published")
    for silo in silos:
        join(silo, number)
    return federation_id, silos


served = coordinator_fixture("each", tick_seconds=0.05, retry_seconds=0.1, polls_per_second=20)


@contextmanager
def storing_is_blocked(served: Served) -> Iterator[None]:
    """Block the storage of coded weights until the block ends."""
    with served.database.write() as session:
        lock = "SELECT 1" if served.database.is_sqlite else "LOCK TABLE coded_weights IN SHARE MODE"
        session.execute(text(lock))  # SQLite's lock comes with the transaction, which begins now
        yield


def request_by(served: Served, silo: Silo, recipe: str) -> httpx.Response:
    """Request coded weights on a new connection."""
    return request_weights(
        Silo(silo.client_id, silo.federation_id, silo.key, served.signing(silo.key)), 2, recipe
    )


def test_repeated_requests_need_no_codec_slot(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(concurrency, "_PATIENCE_SECONDS", 0.2)
    _, (silo, _) = play_until(served, 2)
    first = request_weights(silo, 2, "int8_own_last")
    tag, proof = first.headers["etag"], first.headers["tessera-weights"]
    with codec_slot(), codec_slot():
        again = request_weights(silo, 2, "int8_own_last")
        tail = request_weights(silo, 2, "int8_own_last", **{"Range": "bytes=0-"})
        unchanged = request_weights(silo, 2, "int8_own_last", **{"If-None-Match": tag})
        assert slug(request_weights(silo, 2, "int4_own_last")) == "busy"
    assert [answer.status_code for answer in (first, again, tail, unchanged)] == [200, 200, 206, 304]
    assert again.content == first.content
    assert {answer.headers["tessera-weights"] for answer in (again, tail, unchanged)} == {proof}
    assert {answer.headers["etag"] for answer in (again, tail, unchanged)} == {tag}


def test_an_impossible_recipe_is_remembered(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(concurrency, "_PATIENCE_SECONDS", 0.2)
    federation_id, silos = running(served, **plan(limits={"max_norm": 1e30}))
    for silo, fill in zip(silos, (1e20, -1e20), strict=True):
        tensors = {"b0.q.P": np.full((2, 2), fill, np.float32), "b0.q.Q": np.full(2, fill, np.float32)}
        assert put(silo, 1, update_body(silo, 1, join(silo, 1), tensors)).status_code == 201
    wait_for(served, federation_id, 1, "published")
    named = join(silos[0], 2)
    assert request_weights(silos[0], 2, "int8_own_last").headers["etag"] == f'"{named}"'
    with codec_slot(), codec_slot():
        assert request_weights(silos[0], 2, "int8_own_last").headers["etag"] == f'"{named}"'


def test_one_client_uses_at_most_one_codec_slot(
    served: Served, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, (silo, _) = play_until(served, 2)
    with ThreadPoolExecutor(3) as pool:
        with storing_is_blocked(served):
            pending = [pool.submit(request_by, served, silo, recipe) for recipe in ("bf16", "bf16", "int8")]
            time.sleep(0.5)
            with monkeypatch.context() as impatient:
                impatient.setattr(concurrency, "_PATIENCE_SECONDS", 0.1)
                with codec_slot():
                    assert [first.result().text for first in pending if first.done()] == []
        first, same, third = (future.result() for future in pending)
    assert first.content == same.content != third.content
    assert all("tessera-weights" in answer.headers for answer in (first, same, third))
    assert rows(served.database_url, STORED_CODED) == [(2, "bf16"), (2, "int8")]


def test_two_replicas_store_coded_weights_once(
    serve: Callable[..., Served], fresh_postgres: Callable[[], str], rows: Rows
) -> None:
    place = fresh_postgres()
    replicas = [serve(place, tick_seconds=0.05, retry_seconds=0.1) for _ in range(2)]
    _, (silo, _) = play_until(replicas[0], 2)
    with ThreadPoolExecutor(2) as pool:
        with storing_is_blocked(replicas[0]):
            pending = [pool.submit(request_by, replica, silo, "int4_own_last") for replica in replicas]
            time.sleep(0.5)
            assert not any(first.done() for first in pending)
        first, second = (future.result() for future in pending)
    assert (first.status_code, first.content) == (second.status_code, second.content)
    assert first.headers["tessera-weights"] == second.headers["tessera-weights"]
    assert rows(place, STORED_CODED) == [(2, "int4_own_last")]


def test_pruning_deletes_coded_weights_of_old_rounds(served: Served, rows: Rows) -> None:
    _, (silo, _) = play_until(served, 5)
    named = {number: request_weights(silo, number, "int8").headers["etag"] for number in range(1, 6)}
    assert retention.prune_rounds(served.database, 2) > 0
    assert rows(served.database_url, STORED_CODED) == [(number, "int8") for number in (3, 4, 5)]
    garbage_collection.collect(served.database, grace=timedelta(0))
    for number in (3, 4, 5):
        assert request_weights(silo, number, "int8").headers["etag"] == named[number]
    assert slug(request_weights(silo, 2, "int8")) == "not-found"
    assert rows(served.database_url, STORED_CODED) == [(number, "int8") for number in (3, 4, 5)]
    digests = {f'"{digest}"' for (digest,) in rows(served.database_url, "SELECT digest FROM payloads")}
    assert [number for number in named if named[number] in digests] == [3, 4, 5]


def test_coded_weights_are_reproducible_after_deletion(served: Served) -> None:
    _, (silo, _) = play_until(served, 2)
    before = request_weights(silo, 2, "int4_own_last")
    with served.database.write() as session:
        session.execute(delete(CodedWeightsRow))
    assert garbage_collection.collect(served.database, grace=timedelta(0)) == 1
    after = request_weights(silo, 2, "int4_own_last")
    assert after.content == before.content
    assert after.headers["tessera-weights"] == before.headers["tessera-weights"]


def test_a_nearly_full_disk_stores_no_coded_weights(
    serve: Callable[..., Served], fresh_database: Callable[[str], str], rows: Rows, tmp_path: Path
) -> None:
    place = fresh_database("sqlite")
    empty = serve(place, tick_seconds=0.05, retry_seconds=0.1)
    _, (silo, _) = play_until(empty, 2)
    coded = request_weights(silo, 2, "int8").content
    empty.stop()
    full = serve(place, storage_reserve_mib=2 * shutil.disk_usage(tmp_path).free // 2**20)
    assert request_by(full, silo, "int8").content == coded
    dense = request_by(full, silo, "bf16")
    assert dense.status_code == 200
    assert "tessera-weights" not in dense.headers
    assert dense.content == full.signing(silo.key).get(url(silo, 2, "/weights")).content
    assert rows(place, STORED_CODED) == [(2, "int8")]
