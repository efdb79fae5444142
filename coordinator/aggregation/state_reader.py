"""Read columns of the clients' states, or A and B of a module, in short transactions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import prod
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from coordinator.aggregation.blocks import Block
from coordinator.aggregation.part import StoredState
from coordinator.db.engine import Database
from coordinator.storage import payloads
from coordinator.strategies.base import Floats, Module, Weights
from coordinator.strategies.capabilities import Source
from schemas.maths.adapter import Layout, Shape, factor_of, module_of
from schemas.maths.factors import Factors

Item = TypeVar("Item")
Values = NDArray[np.float32]
Place = tuple[int, Shape]

VALUE_BYTES = 4
# Bytes read in one transaction: on SQLite a reader may keep writers waiting.
_TRANSACTION_BYTES = 16 * 2**20
_APART_VALUES = 80


def room(rows: int, values: int, spare: Values | None = None) -> Values:
    """Return memory for rows of float32 (rows, values): that of `spare`, an earlier result, if it fits.

    It fits if it is large enough and at most twice as large.
    """
    # Long rows have gaps between them: blocks are often powers of two long, and rows at such distances share
    # few places of a processor's cache, which doubles the time of a product.
    stride = values + (_APART_VALUES if values > 100 * _APART_VALUES else 0)
    # Memory is reused because the kernel has to clear new memory.
    flat = spare.base if spare is not None else None
    if flat is None or not rows * stride <= flat.size <= 2 * rows * stride:
        flat = np.empty(rows * stride, "<f4")
    return flat[: rows * stride].reshape(rows, stride)[:, :values]


def read_columns(
    database: Database,
    states: Sequence[StoredState | None],
    block: Block,
    used: Sequence[int],
    values: Values,
) -> None:
    """Read the block's columns of the clients `used` into `values` (used, block), which are little-endian."""
    parts = [(i, states[place], block.begins[place]) for i, place in enumerate(used)]
    for portion in portions(parts, block.size * VALUE_BYTES):
        with database.driver_connection() as driver:
            for i, state, begin in portion:
                if state is None:
                    raise LookupError("a client without a state has weight")
                offset = state.begin + begin * VALUE_BYTES
                payloads.read_into(driver, state.payload_id, offset, memoryview(values[i]).cast("B"))


def portions(items: Sequence[Item], bytes_each: int) -> Iterator[Sequence[Item]]:
    most = max(1, _TRANSACTION_BYTES // max(1, bytes_each))
    for offset in range(0, len(items), most):
        yield items[offset : offset + most]


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

    def client_factors(self, client_id: str, module: Module) -> Factors:
        with self._database.driver_connection() as driver:
            return self._factors(driver, client_id, module)

    def _factors(self, driver: Any, client_id: str, module: Module) -> Factors:
        state, places_by_factor = self._states[client_id], self._places[client_id][module]
        return read_factors(
            driver, state.payload_id, state.begin, places_by_factor["A"], places_by_factor["B"]
        )

    def _bytes(self, client_id: str, module: Module) -> int:
        return sum(prod(shape) for _, shape in self._places[client_id][module].values()) * VALUE_BYTES


def places(layout: Layout) -> dict[Module, dict[str, Place]]:
    places_by_module: dict[Module, dict[str, Place]] = {}
    offset = 0
    for tensor, shape in layout.items():
        places_by_module.setdefault(module_of(tensor), {})[factor_of(tensor)] = offset, shape
        offset += prod(shape)
    return places_by_module


def read_factors(driver: Any, payload_id: int, begin: int, a: Place, b: Place) -> Factors:
    """Read A and B over the driver's connection; their places are in the values from byte `begin` on."""

    def read(place: Place) -> Values:
        offset, shape = place
        values: Values = np.empty(shape, "<f4")
        payloads.read_into(driver, payload_id, begin + offset * VALUE_BYTES, values.data.cast("B"))
        return values

    return Factors(read(a), read(b))
