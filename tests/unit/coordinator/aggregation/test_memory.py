"""Memory is bounded by the block, not by the number of clients or the size of their adapters."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable

import numpy as np
import pytest

from coordinator.aggregation import job
from coordinator.aggregation.job import claim_due
from coordinator.db.engine import Database
from tests.unit.coordinator.aggregation.closed_round import Sent, close_round, plan, served_values

MIB = 2**20
BLOCK_BYTES = 4 * MIB


@pytest.mark.parametrize("weights", ["equal", "own"])
def test_peak_memory_is_bounded_by_the_block_size(sqlite_database: Database, weights: str) -> None:
    """Whether one body is made for all, or one for each."""
    clients, values, budget = 16, 50_000, MIB  # 3 MiB of states
    layout = {"b0.q.P": (values,)}
    signatures = np.random.default_rng(0).normal(size=(clients, 2))
    close_round(
        sqlite_database,
        plan("fedavg" if weights == "equal" else "fedmosaic"),
        [
            Sent(layout, np.full(values, i, np.float32), signature=signature)
            for i, signature in enumerate(signatures.tolist())
        ],
    )
    claim = claim_due(sqlite_database, 600.0)
    assert claim is not None
    tracemalloc.start()
    try:
        job.aggregate(sqlite_database, claim, block_bytes=budget, between=lambda: None)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < budget + MIB


@pytest.mark.long
@pytest.mark.parametrize("backend", ["sqlite", "postgres"])
def test_memory_does_not_grow_with_clients_or_values(
    fresh_database: Callable[[str], str], backend: str
) -> None:
    peaks = {}
    for clients, values in ((4, 250_000), (32, 250_000), (8, 2_000_000)):
        database = Database(fresh_database(backend))
        layout = {"b0.q.P": (values,)}
        closed = close_round(
            database, plan(), [Sent(layout, np.full(values, i, np.float32)) for i in range(clients)]
        )
        claim = claim_due(database, 600.0)
        assert claim is not None
        tracemalloc.start()
        try:
            job.aggregate(database, claim, block_bytes=BLOCK_BYTES, between=lambda: None)
            peaks[clients, values] = tracemalloc.get_traced_memory()[1] / MIB
        finally:
            tracemalloc.stop()
        np.testing.assert_allclose(served_values(database, closed.clients[0], layout), (clients - 1) / 2)
        database.close()
    # all together would be 4, 31 and 61 MiB
    assert max(peaks.values()) < 40, peaks
    assert max(peaks.values()) < 1.5 * min(peaks.values()) + 8, peaks
