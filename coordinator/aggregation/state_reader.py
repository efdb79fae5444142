"""Read columns of the clients' states from the database, in short transactions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from coordinator.aggregation.blocks import Block
from coordinator.db.engine import Database
from coordinator.storage import payloads
from schemas.maths.adapter import Layout

Item = TypeVar("Item")
Values = NDArray[np.float32]

VALUE_BYTES = 4
_TRANSACTION_BYTES = 16 * 2**20
_APART_VALUES = 80


@dataclass(frozen=True, slots=True)
class StoredState:
    """A client's stored adapter state: float32 values in the order of `layout`, from byte `begin` on."""

    payload_id: int
    begin: int
    layout: Layout


def room(rows: int, values: int, spare: Values | None = None) -> Values:
    """Return memory for rows of float32 (rows, values): that of `spare`, an earlier result, if it fits.

    It fits if it is large enough and at most twice as large; the kernel has to clear new memory. Long rows
    have gaps between them: blocks are often powers of two long, and rows at such distances share few places
    of a processor's cache, which doubles the time of a product.
    """
    stride = values + (_APART_VALUES if values > 100 * _APART_VALUES else 0)
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
                at = state.begin + begin * VALUE_BYTES
                payloads.read_into(driver, state.payload_id, at, memoryview(values[i]).cast("B"))


def portions(items: Sequence[Item], bytes_each: int) -> Iterator[Sequence[Item]]:
    most = max(1, _TRANSACTION_BYTES // max(1, bytes_each))
    for at in range(0, len(items), most):
        yield items[at : at + most]
