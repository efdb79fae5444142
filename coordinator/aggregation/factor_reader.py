"""Read A and B of one module from the clients' states, in short transactions."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any

import numpy as np

from coordinator.aggregation.state_reader import VALUE_BYTES, StoredState, Values, portions
from coordinator.db.engine import Database
from coordinator.storage import payloads
from coordinator.strategies.base import Floats, Module, Weights
from coordinator.strategies.capabilities import Source
from schemas.maths.adapter import Layout, Shape, factor_of, module_of
from schemas.maths.factors import Factors

Place = tuple[int, Shape]


class StoredFactors:
    """The positions of every client's A and B, by module."""

    def __init__(self, database: Database, states: Mapping[str, StoredState]) -> None:
        self._database = database
        self._states = states
        self._places = {client: places(state.layout) for client, state in states.items()}

    def sources(self, weights: Weights, module: Module, row: Floats) -> list[Source]:
        """Read a module of all clients with weight in a row (N,) of W; [] if no client has."""
        clients = weights.cohort.clients
        weighted = [(clients[place], float(row[place])) for place in map(int, np.flatnonzero(row))]
        most = max((self._bytes(facts.client, module) for facts, _ in weighted), default=0)
        sources: list[Source] = []
        for portion in portions(weighted, most):
            with self._database.driver_connection() as driver:
                sources += [
                    Source(self._factors(driver, facts.client, module), weight, facts.age or 0)
                    for facts, weight in portion
                ]
        return sources

    def of_client(self, client_id: str, module: Module) -> Factors:
        with self._database.driver_connection() as driver:
            return self._factors(driver, client_id, module)

    def _factors(self, driver: Any, client_id: str, module: Module) -> Factors:
        state, by_factor = self._states[client_id], self._places[client_id][module]
        return read_factors(driver, state.payload_id, state.begin, by_factor["A"], by_factor["B"])

    def _bytes(self, client_id: str, module: Module) -> int:
        return sum(prod(shape) for _, shape in self._places[client_id][module].values()) * VALUE_BYTES


def places(layout: Layout) -> dict[Module, dict[str, Place]]:
    by_module: dict[Module, dict[str, Place]] = {}
    at = 0
    for tensor, shape in layout.items():
        by_module.setdefault(module_of(tensor), {})[factor_of(tensor)] = at, shape
        at += prod(shape)
    return by_module


def read_factors(driver: Any, payload_id: int, begin: int, a: Place, b: Place) -> Factors:
    """Read A and B over the driver's connection; their places are in the values from byte `begin` on."""

    def read(place: Place) -> Values:
        at, shape = place
        values: Values = np.empty(shape, "<f4")
        payloads.read_into(driver, payload_id, begin + at * VALUE_BYTES, values.data.cast("B"))
        return values

    return Factors(read(a), read(b))
