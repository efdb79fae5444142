"""G = W U in column blocks: each client's weights from everybody's states, in memory that never grows.

U (N, D) are the clients' adapter states in the database, W (N, N) the weights of each module. A block of
columns is multiplied while the one before it is written, and hashed while the next one is read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Protocol

import numpy as np

from coordinator.aggregation.blocks import blocks
from coordinator.aggregation.output_writer import Made, Receiver, Writer, begin, discard
from coordinator.aggregation.state_reader import StoredState, Values, read_columns, room
from coordinator.db.engine import Database
from coordinator.strategies.base import Cohort, Floats, Module, modules_of

_BATCH_BYTES = 8 * 2**20


class Weights(Protocol):
    """Who is given how much of whom."""

    @property
    def cohort(self) -> Cohort:
        """Whose weights they are, in which order."""

    def of_module(self, module: Module) -> Floats:
        """Give W for one module, (N, N)."""


def mix(
    database: Database,
    weights: Weights,
    states: Mapping[str, StoredState],
    receivers: Sequence[Receiver],
    *,
    block_bytes: int,
    between: Callable[[], None],
) -> dict[str, Made]:
    """Write the receivers' weights as staged payloads; give each one's body by client.

    `between` is called after every block; what it raises ends the work and what was staged is discarded.
    """
    bodies = begin(database, alike(weights, receivers))
    firsts = [body.receivers[0] for body in bodies]
    batch_bytes = min(_BATCH_BYTES, block_bytes // 8)
    try:
        with Writer(database, batch_bytes=batch_bytes) as writer:
            for columns in in_blocks(
                database, weights, states, firsts, block_bytes=block_bytes - batch_bytes
            ):
                writer.flush()
                product = columns.product(writer.spare())
                writer.wait()
                writer.take([bodies[place] for place in columns.places], product)
                del columns  # its memory is used again, or given back before there is more
                between()
            writer.flush(at_least=0)
            writer.wait()
    except BaseException:
        discard(database, [made for body in bodies for made in body.made().values()])
        raise
    return {client: made for body in bodies for client, made in body.made().items()}


@dataclass(frozen=True, slots=True)
class Columns:
    """Some columns of U and what they are multiplied with.

    Attributes:
        places: which of the receivers have these columns, R of them.
        weights: (R, used), over the clients that any of them listens to.
        values: (used, block) float32; only until the next columns are asked for.
    """

    places: list[int]
    weights: Floats
    values: Values

    def product(self, spare: Values | None = None) -> Values:
        """Give the receivers' rows of G, (R, block), in the memory of `spare` if there is enough.

        One sum of N products per value, in float32, in an order that BLAS chooses. Where a row of weights
        sums to 1, the error is below 1e-6 of the largest of the values summed. The last bits depend on BLAS
        and its threads, on the size of the block, and on how many receivers share it: replicas that differ
        in these give weights that are equal up to this error.
        """
        made = room(len(self.weights), self.values.shape[1], spare)
        return np.matmul(self.weights.astype(np.float32), self.values, out=made)


def in_blocks(
    database: Database,
    weights: Weights,
    states: Mapping[str, StoredState],
    receivers: Sequence[Receiver],
    *,
    block_bytes: int,
) -> Iterator[Columns]:
    """Read what makes G, block by block."""
    clients = [facts.client for facts in weights.cohort.clients]
    layouts = {one.client: one.layout for one in receivers}
    rows = {clients.index(one.client): place for place, one in enumerate(receivers)}
    every = [layouts[one] if one in layouts else states[one].layout for one in clients]
    held = [states.get(client) for client in clients]
    values: Values | None = None
    for block in blocks(every, rows.keys(), block_bytes, kind=weights.cohort.kind):
        here = [row for row in rows if row in block.begins]
        given = weights.of_module(block.module)[here]  # (here, N)
        used = [place for place in block.begins if given[:, place].any()]
        values = room(len(used), block.size, values)
        read_columns(database, held, block, used, values)
        yield Columns([rows[row] for row in here], given[:, used], values)


def alike(weights: Weights, receivers: Sequence[Receiver]) -> list[list[Receiver]]:
    """Put receivers together whose rows of G are equal: same layout, same weights in every module of it."""
    rows = {facts.client: row for row, facts in enumerate(weights.cohort.clients)}
    modules = sorted({module for one in receivers for module in modules_of(one.layout)})
    seen = {one.client: sha256(repr(one.layout).encode()) for one in receivers}
    for module in modules:
        given = np.ascontiguousarray(weights.of_module(module))
        for one in receivers:
            seen[one.client].update(given[rows[one.client]])
    groups: dict[bytes, list[Receiver]] = {}
    for one in receivers:
        groups.setdefault(seen[one.client].digest(), []).append(one)
    return list(groups.values())
