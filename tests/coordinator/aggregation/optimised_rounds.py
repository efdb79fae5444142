"""Rounds under an optimiser of the coordinator, and the weights that the papers compute."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coordinator.db.engine import Database
from schemas.maths.adapter import in_order
from schemas.messages.federations import FederationPlan
from tests.coordinator.aggregation.closed_round import (
    Closed,
    Sent,
    begin_with_zeros,
    close_next,
    close_round,
    plan,
    publish,
)

Floats = NDArray[np.float64]
PQ = in_order({"b0.q.P": (3, 3), "b0.q.Q": (3,)})
SIZE = 12
MOMENTUM: dict[str, Any] = {"kind": "momentum", "learning_rate": 0.5, "beta": 0.8}
ADAM: dict[str, Any] = {"kind": "adam", "learning_rate": 0.1, "beta1": 0.7, "beta2": 0.9, "tau": 0.01}
EXAMPLES = (1, 4, 7)


def reference(optimizer: dict[str, Any], means: Sequence[Floats]) -> list[Floats]:
    """Follow the papers: the weights after each round whose mean is given, from zeros."""
    weights, m = np.zeros_like(means[0]), np.zeros_like(means[0])
    v = np.full_like(m, optimizer.get("tau", 0.0) ** 2)
    after = []
    for mean in means:
        gradient = mean - weights
        if optimizer["kind"] == "momentum":
            m = optimizer["beta"] * m + gradient
            step = m
        else:
            m = optimizer["beta1"] * m + (1 - optimizer["beta1"]) * gradient
            v = optimizer["beta2"] * v + (1 - optimizer["beta2"]) * gradient**2
            step = m / (np.sqrt(v) + optimizer["tau"])
        weights = weights + optimizer["learning_rate"] * step
        after.append(weights)
    return after


def planned(optimizer: object, recipe: str = "dense", **options: Any) -> FederationPlan:
    strategy = {"name": "fedavg", "options": {"server_optimizer": optimizer, **options}}
    wire = {"recipe": "dense", "weights_recipe": recipe}
    whole = plan(total=9).model_dump(mode="json") | {"strategy": strategy, "wire": wire}
    return FederationPlan.model_validate(whole)


def updates(number: int, clients: int = 3) -> list[Sent]:
    draw = np.random.default_rng(number)
    return [
        Sent(PQ, draw.normal(size=SIZE).astype(np.float32), examples=EXAMPLES[place], shift=place)
        for place in range(clients)
    ]


def mean_of(sent: Sequence[Sent]) -> Floats:
    weights = np.array([update.examples for update in sent], np.float64)
    return np.average([update.values for update in sent], axis=0, weights=weights)


def begun(database: Database, wanted: FederationPlan) -> Closed:
    closed = close_round(database, wanted, updates(1))
    begin_with_zeros(database, closed, PQ)
    return closed


def play(database: Database, closed: Closed, number: int, clients: Sequence[int] = (0, 1, 2)) -> Floats:
    """Play a round after the first with some clients; return the mean of what they sent."""
    sent = updates(number)
    close_next(database, closed, {closed.clients[place]: sent[place] for place in clients})
    publish(database)
    return mean_of([sent[place] for place in clients])
