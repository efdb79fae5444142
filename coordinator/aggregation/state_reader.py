"""Read columns of the clients' states from the database, in transactions that are short whatever is read."""

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
    """Where a client's adapter state is: float32 values in the order of `layout`, from byte `begin` on."""

    payload_id: int
    begin: int
    layout: Layout


def room(rows: int, values: int, spare: Values | None = None) -> Values:
    """Give memory for rows of float32 (rows, values): that of `spare`, which came from here, if it fits.

    It must be enough, and not so much that few values would hold a large block's memory; new memory has to be
    cleared by the kernel. Long rows have gaps between them: blocks are often powers of two long, and rows so
    far apart share few places of a processor's cache, where a product takes twice as long.
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
    wanted = [(i, states[place], block.begins[place]) for i, place in enumerate(used)]
    for some in portions(wanted, block.size * VALUE_BYTES):
        with database.driver_connection() as driver:
            for i, state, begin in some:
                if state is None:
                    raise LookupError("a client without a state was given weight")
                at = state.begin + begin * VALUE_BYTES
                payloads.read_into(driver, state.payload_id, at, memoryview(values[i]).cast("B"))


def portions(items: Sequence[Item], bytes_each: int) -> Iterator[Sequence[Item]]:
    """Cut work into transactions that are short whatever the block: nobody waits long for the database."""
    most = max(1, _TRANSACTION_BYTES // max(1, bytes_each))
    for at in range(0, len(items), most):
        yield items[at : at + most]
