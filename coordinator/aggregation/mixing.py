"""Compute G = W U in blocks of columns, in memory that does not grow with the number of clients.

U (N, D) are the clients' adapter states in the database, W (N, N) the weights of each module. A block is
multiplied while the one before it is written, and hashed while the next one is read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from coordinator.aggregation.blocks import blocks
from coordinator.aggregation.output_writer import (
    BATCH_BYTES,
    Receiver,
    StagedOutput,
    Writer,
    begin,
    discard,
    outputs,
)
from coordinator.aggregation.state_reader import StoredState, Values, read_columns, room
from coordinator.db.engine import Database
from coordinator.strategies.base import Floats, Robust, Weights


def mix(
    database: Database,
    weights: Weights,
    states: Mapping[str, StoredState],
    receivers: Sequence[Receiver],
    *,
    block_bytes: int,
    between: Callable[[], None],
    robust: Robust | None = None,
) -> dict[str, StagedOutput]:
    """Write the receivers' weights as staged payloads, and return each one's body by client.

    `robust` replaces the mean of the clients that have weight for a receiver (`Strategy.robust`).
    `between` is called after every block; if it raises, the staged payloads are discarded.
    """
    bodies = begin(database, weights, receivers)
    firsts = [body.receivers[0] for body in bodies]
    batch_bytes = min(BATCH_BYTES, block_bytes // 8)
    try:
        with Writer(database, batch_bytes=batch_bytes) as writer:
            for columns in in_blocks(
                database, weights, states, firsts, block_bytes=block_bytes - batch_bytes
            ):
                writer.flush()
                product = columns.product(writer.spare()) if robust is None else columns.robust(robust)
                writer.wait()
                writer.submit([bodies[place] for place in columns.places], product)
                del columns  # so that its memory is reused, or freed before more is allocated
                between()
            writer.flush(at_least=0)
            writer.wait()
    except BaseException:
        discard(database, outputs(bodies).values())
        raise
    return outputs(bodies)


@dataclass(frozen=True, slots=True)
class Columns:
    """Some columns of U, and the rows of W that multiply them.

    Attributes:
        places: the R receivers that have these columns.
        weights: (R, used), over the clients with any weight in them.
        values: (used, block) float32; valid until the next columns are read.
    """

    places: list[int]
    weights: Floats
    values: Values

    def product(self, spare: Values | None = None) -> Values:
        """Return the receivers' rows of G, (R, block), in the memory of `spare` if there is enough.

        One sum of N products per value, in float32, in an order that BLAS chooses. Where a row of weights
        sums to 1, the error is below 1e-6 of the largest of the values summed. The last bits depend on BLAS
        and its threads, on the size of the block, and on the number of receivers: replicas that differ in
        these compute weights that are equal up to this error.
        """
        product = room(len(self.weights), self.values.shape[1], spare)
        return np.matmul(self.weights.astype(np.float32), self.values, out=product)

    def robust(self, aggregated: Robust) -> Values:
        """Return the receivers' rows, (R, block), each from the clients that it has weights for."""
        return np.stack(
            [
                aggregated(self.values[row > 0])
                if (row > 0).any()
                else np.zeros(self.values.shape[1], np.float32)
                for row in self.weights
            ]
        )


def in_blocks(
    database: Database,
    weights: Weights,
    states: Mapping[str, StoredState],
    receivers: Sequence[Receiver],
    *,
    block_bytes: int,
) -> Iterator[Columns]:
    clients = [facts.client for facts in weights.cohort.clients]
    layouts = {receiver.client: receiver.layout for receiver in receivers}
    rows = {clients.index(receiver.client): place for place, receiver in enumerate(receivers)}
    every = [layouts[client] if client in layouts else states[client].layout for client in clients]
    stored = [states.get(client) for client in clients]
    values: Values | None = None
    for block in blocks(every, rows.keys(), block_bytes, kind=weights.cohort.kind):
        receiving = [row for row in rows if row in block.begins]
        of_block = weights.of_module(block.module)[receiving]  # (R, N)
        used = [place for place in block.begins if of_block[:, place].any()]
        values = room(len(used), block.size, values)
        read_columns(database, stored, block, used, values)
        yield Columns([rows[row] for row in receiving], of_block[:, used], values)
