"""Median and trimmed mean instead of the mean: served weights and refused plans."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from coordinator.db.engine import Database
from coordinator.strategies.averaging import aggregated
from schemas.messages.federations import FederationPlan, StrategyPlan
from tests.scene.coordinator import Served
from tests.unit.coordinator.aggregation.closed_round import Sent, close_round, plan, publish, served_values

LORA = {"kind": "lora", "rank": 2, "roles": ["q"]}


def with_aggregate(how: str) -> FederationPlan:
    strategy = StrategyPlan(name="fedavg", options={"aggregate": how})
    return plan().model_copy(update={"strategy": strategy})


def test_trimmed_means_and_medians_drop_extreme_values() -> None:
    values = np.array([[9.0, 1.0], [2.0, -70.0], [3.0, 2.0], [4.0, 3.0]], np.float32)
    assert aggregated(values, "median").tolist() == [3.5, 1.5]
    assert aggregated(values, "trimmed_mean").tolist() == [3.5, 1.5]
    many = np.arange(20, dtype=np.float32)[:, None] ** 2
    assert aggregated(many, "trimmed_mean")[0] == np.float32(np.mean(np.arange(2, 18) ** 2))
    assert aggregated(values[:1], "trimmed_mean").tolist() == [9.0, 1.0]
    assert aggregated(values[:2], "trimmed_mean").tolist() == [5.5, -34.5]


@pytest.mark.parametrize("how", ["median", "trimmed_mean"])
def test_robust_aggregates_limit_a_single_outlier(database: Database, how: Any) -> None:
    draw = np.random.default_rng(1)
    states = [draw.normal(size=(3, 3)).astype(np.float32) for _ in range(5)]
    states[4] = np.full((3, 3), 1e3, np.float32)
    everyone = [
        Sent.of({"b0.q.P": state, "b0.q.Q": state[0]}, examples=1 + 90 * number)
        for number, state in enumerate(states)
    ]
    closed = close_round(database, with_aggregate(how), everyone)
    publish(database)
    expected = aggregated(np.stack([sent.values for sent in everyone]), how)
    assert np.abs(expected).max() < 10
    for client, sent in zip(closed.clients, everyone, strict=True):
        np.testing.assert_array_equal(served_values(database, client, sent.layout), expected)


@pytest.mark.parametrize("strategy", ["fedavg", "ditto", "ffa_lora", "fedsa_lora", "fedprox"])
def test_a_secure_sum_refuses_robust_aggregates(coordinator: Served, strategy: str) -> None:
    body = {
        "name": "x",
        "strategy": {"name": strategy, "options": {"aggregate": "median"}},
        "adapter": LORA,
        "rounds": {"min_clients": 5},
    }
    refused = coordinator.admin.post("/v1/federations", json=body | {"privacy": {"secure_sum": {}}})
    assert (refused.status_code, refused.json()["field"]) == (422, "strategy.options.aggregate")
    assert "a sum shows no single value" in refused.json()["detail"]
    assert coordinator.admin.post("/v1/federations", json=body).status_code == 201


@pytest.mark.parametrize("strategy", ["fedmosaic", "flora", "fedex_lora", "het_lora", "lora_fair", "ca_pfl"])
def test_refusals_of_aggregate_name_strategies_with_the_option(coordinator: Served, strategy: str) -> None:
    body = {"name": "x", "strategy": {"name": strategy, "options": {"aggregate": "median"}}, "adapter": LORA}
    refused = coordinator.admin.post("/v1/federations", json=body)
    assert (refused.status_code, refused.json()["field"]) == (422, "strategy.options.aggregate")
    assert "ditto, fedavg, fedprox, fedsa_lora, ffa_lora have it" in refused.json()["detail"]
