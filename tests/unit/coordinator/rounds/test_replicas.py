"""Two services on one PostgreSQL serve the same rounds."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from sqlalchemy import select

from coordinator.db.federation_lock import lock_federation
from coordinator.db.tables.federations import PayloadRow
from coordinator.storage import payloads
from tests.scene.coordinator import Served, Silo
from tests.scene.database import ask
from tests.scene.rounds import PLAN, join, put, running, try_join, update_body, values, wait_for, weights
from tests.scene.waiting import wait_until

Rows = Callable[[str, str], list[tuple[Any, ...]]]


@pytest.mark.slow
def test_two_replicas_publish_each_round_once(
    serve: Callable[..., Served], fresh_postgres: Callable[[], str], rows: Rows
) -> None:
    url = fresh_postgres()
    replicas = [serve(url, tick_seconds=0.02, retry_seconds=0.1) for _ in range(2)]
    settings = PLAN | {"rounds": {"total": 6, "min_clients": 6}}
    federation_id, silos = running(replicas[0], clients=6, **settings)
    # every client talks to both
    lines = [
        [Silo(silo.client_id, federation_id, silo.key, replica.signing(silo.key)) for replica in replicas]
        for silo in silos
    ]
    for number in range(1, 7):
        bodies = [
            update_body(silo, number, join(both[number % 2], number), values(i + number))
            for i, (silo, both) in enumerate(zip(silos, lines, strict=True))
        ]
        with ThreadPoolExecutor(12) as pool:
            twice = [
                pool.submit(put, line, number, body)
                for both, body in zip(lines, bodies, strict=True)
                for line in both
            ]
            statuses = sorted(answer.result().status_code for answer in twice)
        assert statuses == [200] * 6 + [201] * 6
        shown = wait_for(replicas[1], federation_id, number, "published")
        assert shown["counts"] == {"joined": 6, "arrived": 6, "late": 0, "dropped": 0, "rejected": 0}
    for silo in silos:
        np.testing.assert_allclose(weights(silo, 7)["b0.q.P"], 8.5)
    rounds = rows(url, "SELECT number, state FROM rounds ORDER BY number")
    assert rounds == [(number, "published") for number in range(1, 7)]
    served = rows(url, "SELECT round_number, count(*) FROM weights GROUP BY 1 ORDER BY 1")
    assert served == [(number, 6) for number in range(1, 8)]


def test_a_join_and_a_delivery_never_deadlock(
    serve: Callable[..., Served], fresh_postgres: Callable[[], str]
) -> None:
    url = fresh_postgres()
    served = serve(url, tick_seconds=3600.0)
    federation_id, (silo, _) = running(served)
    zeros = bytes(4 * sum(array.size for array in values(0.0).values()))
    with ThreadPoolExecutor(1) as pool:
        with served.database.write() as session:  # as a delivery does: bytes, then the federation
            payloads.store_bytes(session, zeros)
            joining = pool.submit(try_join, silo, 1)
            wait_until(lambda: ask(url, "SELECT count(*) FROM pg_locks WHERE NOT granted") != [(0,)])
            lock_federation(session, federation_id)
        assert joining.result().status_code == 200
    with served.database.read() as session:
        assert len(session.scalars(select(PayloadRow.id)).all()) == 1
