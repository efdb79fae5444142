"""G = W U in column blocks: each client's weights from everybody's states, in memory that never grows.

U (N, D) are the clients' adapter states in the database, W (N, N) the weights of each (block, role). A block
of columns is read, multiplied and appended to the new bodies before the next one is looked at.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from coordinator import payloads
from coordinator.aggregation.columns import Block, blocks
from coordinator.database import Database
from coordinator.payloads import Staged
from coordinator.strategies.base import Floats, Weighing
from schemas.maths.adapter import Layout

Item = TypeVar("Item")

_VALUE_BYTES = 4
_TRANSACTION_BYTES = 8 * 2**20
_SLICE_BYTES = 4 * 2**20


@dataclass(frozen=True, slots=True)
class StoredState:
    """Where a client's adapter state is: float32 values in the order of `layout`, from byte `begin` on."""

    payload_id: int
    begin: int
    layout: Layout


@dataclass(frozen=True, slots=True)
class Receiver:
    """Who gets weights: its layout, and the beginning of the body they are put in."""

    client: str
    layout: Layout
    head: bytes


def mix(
    database: Database,
    weighing: Weighing,
    states: Mapping[str, StoredState],
    receivers: Sequence[Receiver],
    *,
    block_bytes: int,
    between: Callable[[], None],
) -> dict[str, Staged]:
    """Write each receiver's weights as a staged payload; give them by client.

    `between` is called after every block; what it raises ends the work and what was staged is discarded.
    """
    clients = [facts.client for facts in weighing.cohort.clients]
    layouts = {one.client: one.layout for one in receivers}
    places = [clients.index(one.client) for one in receivers]
    staged = _begin(database, receivers)
    try:
        every = [layouts[one] if one in layouts else states[one].layout for one in clients]
        for block in blocks(every, block_bytes):
            here = [place for place in places if place in block.begins]
            mixed = _mixed(database, weighing, [states.get(client) for client in clients], block, here)
            _append(database, [staged[clients[place]] for place in here], mixed)
            between()
    except BaseException:
        payloads.discard(database, staged.values())
        raise
    return staged


def _begin(database: Database, receivers: Sequence[Receiver]) -> dict[str, Staged]:
    staged: dict[str, Staged] = {}
    with database.write() as session:
        for one in receivers:
            staged[one.client] = payloads.stage(session)
            staged[one.client].append(session, one.head)
    return staged


def _mixed(
    database: Database,
    weighing: Weighing,
    states: Sequence[StoredState | None],
    block: Block,
    rows: Sequence[int],
) -> NDArray[np.float32]:
    """Give the block's columns of G for the clients `rows`: (rows, block) float32."""
    weights = weighing.of_module(block.module)[rows]  # (rows, N)
    used = [place for place in block.begins if weights[:, place].any()]
    values = np.empty((len(used), block.size), np.float32)  # (used, block)
    wanted = [(i, states[place], block.begins[place]) for i, place in enumerate(used)]
    for some in _portions(wanted, block.size * _VALUE_BYTES):
        with database.read() as session:
            for i, state, begin in some:
                if state is None:
                    raise LookupError("a client without a state was given weight")
                at = state.begin + begin * _VALUE_BYTES
                raw = payloads.read(session, state.payload_id, at, at + block.size * _VALUE_BYTES)
                values[i] = np.frombuffer(raw, "<f4")
    return _product(weights[:, used], values)


def _product(weights: Floats, values: NDArray[np.float32]) -> NDArray[np.float32]:
    """W U in float64, rounded to float32 once; the float64 copy is made of few columns at a time."""
    product = np.zeros((len(weights), values.shape[1]), np.float32)
    step = max(1, _SLICE_BYTES // (8 * max(1, len(values))))
    for at in range(0, values.shape[1] if len(values) else 0, step):
        product[:, at : at + step] = weights @ values[:, at : at + step].astype(np.float64)
    return product


def _append(database: Database, staged: Sequence[Staged], mixed: NDArray[np.float32]) -> None:
    for some in _portions(list(zip(staged, mixed, strict=True)), mixed.shape[1] * _VALUE_BYTES):
        with database.write() as session:
            for body, row in some:
                body.append(session, row.astype("<f4", copy=False).tobytes())


def _portions(items: Sequence[Item], bytes_each: int) -> Iterator[Iterable[Item]]:
    """Cut work into transactions that are short whatever the block: nobody waits long for the database."""
    most = max(1, _TRANSACTION_BYTES // max(1, bytes_each))
    for at in range(0, len(items), most):
        yield items[at : at + most]
