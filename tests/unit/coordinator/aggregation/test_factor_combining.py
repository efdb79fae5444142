"""Strategies that combine A and B per module: inside each base model, in bounded memory."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from coordinator.db.engine import Database
from coordinator.db.tables.federations import PayloadRow, WeightsRow
from coordinator.strategies.capabilities import Source
from coordinator.strategies.opening import make
from schemas.maths.adapter import Layout, lora_layout
from schemas.maths.factors import Factors
from tests.scene.database import row_count
from tests.scene.tensors import split_tensors
from tests.unit.coordinator.aggregation.closed_round import (
    Closed,
    Sent,
    close_round,
    plan,
    publish,
    served_values,
)

LAYOUT: Layout = lora_layout(2, {"q": (5, 6), "down": (3, 4)}, 2)
MODULES = ("l0.down", "l0.q", "l1.down", "l1.q")


def update(seed: int, **facts: Any) -> Sent:
    rng = np.random.default_rng(seed)
    return Sent.of({name: rng.standard_normal(shape) for name, shape in LAYOUT.items()}, **facts)


def expected(strategy: str, sent: list[Sent], shares: list[float]) -> dict[str, np.ndarray]:
    combining = make(strategy, {})
    assert combining.traits.combines
    whole = [split_tensors(update.values, LAYOUT) for update in sent]
    tensors = {}
    for module in MODULES:
        sources = [
            Source(Factors(adapter[f"{module}.A"], adapter[f"{module}.B"]), share)
            for adapter, share in zip(whole, shares, strict=True)
        ]
        combined = combining.combine(sources)
        tensors |= {f"{module}.A": combined.A, f"{module}.B": combined.B}
    return tensors


def served_tensors(database: Database, closed: Closed, place: int) -> dict[str, np.ndarray]:
    return split_tensors(served_values(database, closed.clients[place], LAYOUT), LAYOUT)


def test_a_strategy_combines_inside_each_base_model(database: Database) -> None:
    sent = [
        update(0, examples=30),
        update(1, examples=10),
        update(2, base_model="l"),
        update(3, base_model="l"),
        update(4, base_model="m"),
    ]
    closed = close_round(database, plan("lora_fair"), sent)
    publish(database)
    for places, shares in (([0, 1], [0.75, 0.25]), ([2, 3], [0.5, 0.5]), ([4], [1.0])):
        combined = expected("lora_fair", [sent[place] for place in places], shares)
        for place in places:
            served = served_tensors(database, closed, place)
            for name, values in combined.items():
                np.testing.assert_allclose(served[name], values, rtol=1e-5, atol=1e-6)


def test_clients_of_one_base_model_share_the_bytes(database: Database) -> None:
    sent = [update(i) for i in range(3)]
    before = row_count(database, PayloadRow)
    closed = close_round(database, plan("lora_fair"), sent)
    publish(database)
    assert row_count(database, WeightsRow) == 3
    assert row_count(database, PayloadRow) == before + 3 + 1
    np.testing.assert_array_equal(*(served_values(database, closed.clients[i], LAYOUT) for i in (0, 2)))


def test_staged_weights_are_discarded_after_an_error(database: Database) -> None:
    close_round(database, plan("lora_fair"), [update(0), update(1)])
    before = row_count(database, PayloadRow)

    class Ended(Exception):
        """The aggregation was stopped."""

    def stop() -> None:
        raise Ended

    with pytest.raises(Ended):
        publish(database, stop)
    assert row_count(database, PayloadRow) == before


def test_states_are_read_at_any_byte_offset(database: Database) -> None:
    plain, shifted = update(0), replace(update(1), shift=13)
    closed = close_round(database, plan("lora_fair"), [plain, shifted])
    publish(database)
    combined = expected("lora_fair", [plain, shifted], [0.5, 0.5])
    for name, values in combined.items():
        np.testing.assert_allclose(served_tensors(database, closed, 0)[name], values, rtol=1e-5, atol=1e-6)
