"""Pruned rounds lose tensors that no later round needs."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import numpy as np
import pytest

from coordinator.aggregation import retention
from coordinator.storage import garbage_collection
from tests.scene.coordinator import Served, Silo, coordinator_fixture, slug
from tests.scene.rounds import (
    deliver,
    join,
    one_round,
    plan,
    put,
    running,
    update_body,
    url,
    values,
    wait_for,
    weights,
)
from tests.scene.waiting import wait_until

Rows = Callable[[str, str], list[tuple[Any, ...]]]

KEEP_ROUNDS = 2


served = coordinator_fixture("each", tick_seconds=0.05, retry_seconds=0.1)


def _play_five_rounds(served: Served) -> tuple[str, list[Silo]]:
    """Two of three clients deliver in every round: the third in the first only, then the second."""
    settings = plan(rounds={"total": 7, "min_clients": 2, "collect_seconds": 1, "max_staleness": 6})
    federation_id, silos = running(served, clients=3, **settings)
    # Two deliveries, as many as close a round: a third one races the window of a second on a slow machine.
    for silo, value in ((silos[2], 3.0), (silos[0], 1.0)):
        base = join(silo, 1)
        assert put(silo, 1, update_body(silo, 1, base, values(value))).status_code == 201
    wait_for(served, federation_id, 1, "published")
    for number in range(2, 6):
        for silo in silos[:2]:
            deliver(silo, number, values(10.0 * number))
        wait_for(served, federation_id, number, "published")
    return federation_id, silos


def _prune(served: Served) -> int:
    forgotten = retention.prune_rounds(served.database, KEEP_ROUNDS)
    garbage_collection.collect(served.database, grace=timedelta(0))
    return forgotten


def test_pruning_deletes_tensors_and_keeps_views(served: Served, rows: Rows) -> None:
    federation_id, silos = _play_five_rounds(served)
    before = served.admin.get(f"/v1/federations/{federation_id}/rounds/2").json()
    stored = rows(served.database_url, "SELECT count(*) FROM payloads")[0][0]
    assert _prune(served) > 0
    assert rows(served.database_url, "SELECT count(*) FROM payloads")[0][0] < stored
    assert served.admin.get(f"/v1/federations/{federation_id}/rounds/2").json() == before
    assert slug(silos[0].http.get(url(silos[0], 2, "/weights"))) == "not-found"
    adapter = f"/v1/federations/{federation_id}/clients/{silos[0].client_id}/adapter"
    assert slug(served.admin.get(adapter, params={"round": 2})) == "not-found"
    assert served.admin.get(adapter, params={"round": 5}).status_code == 200
    for number in (4, 5):
        assert silos[0].http.get(url(silos[0], number, "/weights")).status_code == 200
    # Events are stored a moment after their round: some of the old rounds may have come after the first call.
    wait_until(lambda: _prune(served) == 0)


def test_rounds_after_pruning_use_the_last_updates(served: Served) -> None:
    federation_id, silos = _play_five_rounds(served)
    _prune(served)
    one_round(served, federation_id, silos[:2], 6, [60.0, 60.0])
    # The third client's update of round 1 counts on, faded by its age of 5.
    faded = 0.5**5
    mean = (60.0 + 60.0 + 3.0 * faded) / (2 + faded)
    deliver(silos[0], 7, values(0.0))
    np.testing.assert_allclose(weights(silos[0], 7)["b0.q.P"], mean, rtol=1e-5)


@pytest.mark.slow
def test_abandoned_rounds_do_not_count_as_kept_rounds(served: Served) -> None:
    settings = plan(rounds={"total": 5, "min_clients": 2, "quorum": 2, "collect_seconds": 2})
    federation_id, silos = running(served, **settings)
    one_round(served, federation_id, silos, 1, [1.0, 1.0])
    join(silos[1], 2)
    deliver(silos[0], 2, values(2.0))
    wait_for(served, federation_id, 2, "abandoned")
    one_round(served, federation_id, silos, 3, [3.0, 3.0])

    def is_kept(number: int) -> bool:
        adapter = f"/v1/federations/{federation_id}/clients/{silos[0].client_id}/adapter"
        answer = served.admin.get(adapter, params={"round": number})
        return answer.status_code == 200 and silos[0].http.get(url(silos[0], number, "/weights")).is_success

    assert _prune(served) == 0
    assert is_kept(1)
    one_round(served, federation_id, silos, 4, [4.0, 4.0])
    assert _prune(served) > 0
    assert [is_kept(number) for number in (1, 3, 4)] == [False, True, True]
