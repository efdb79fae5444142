"""Rounding errors of sums in float32."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from coordinator.aggregation.combining import Columns
from coordinator.aggregation.state_reader import room
from coordinator.db.engine import Database
from tests.unit.coordinator.aggregation.closed_round import Sent, close_round, plan, publish, served_values

CLIENTS, VALUES = 256, 2000
LAYOUT = {"b0.q.Q": (VALUES,)}


def convex(draw: np.random.Generator, receivers: int) -> NDArray[np.float64]:
    weights = draw.exponential(size=(receivers, CLIENTS))
    return weights / weights.sum(axis=1, keepdims=True)


@pytest.mark.parametrize("receivers", [1, 3, CLIENTS])
def test_products_are_within_a_millionth_of_the_maximum(receivers: int) -> None:
    draw = np.random.default_rng(0)
    weights = convex(draw, receivers)
    values = (draw.normal(size=(CLIENTS, VALUES)) * 10.0 ** draw.uniform(-6, 3, VALUES)).astype(np.float32)
    product = Columns([*range(receivers)], weights, values).product()
    assert product.dtype == np.float32
    error = np.abs(product - weights @ values.astype(np.float64))
    assert (error <= 1e-6 * np.abs(values).max(axis=0)).all()


@pytest.mark.slow
def test_the_mean_of_equal_updates_equals_them(sqlite_database: Database) -> None:
    draw = np.random.default_rng(1)
    same = draw.normal(size=VALUES).astype(np.float32)
    sent = [Sent(LAYOUT, same, examples=int(draw.integers(1, 1000))) for _ in range(CLIENTS)]
    closed = close_round(sqlite_database, plan(), sent)
    publish(sqlite_database, block_bytes=2**20)
    np.testing.assert_allclose(served_values(sqlite_database, closed.clients[7], LAYOUT), same, rtol=1e-6)


def test_memory_is_reused_only_for_similar_sizes() -> None:
    large = room(4, 100_000)
    again = room(3, 90_000, large)
    assert again.shape == (3, 90_000)
    assert np.shares_memory(again, large)
    assert all(row.flags.c_contiguous for row in again)
    small = room(4, 1_000, large)
    assert not np.shares_memory(small, large), "or a few values held back would hold a whole block's memory"
    assert not np.shares_memory(room(4, 200_000, large), large)
