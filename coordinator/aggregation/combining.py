"""Combine updates into the weights of clients: as strategies average values, or combine A and B of a module.

Averages are G = W U in blocks of columns, in memory that does not grow with the number of clients: U (N, D)
are the clients' adapter states in the database, W (N, N) the weights of each module. A block is multiplied
while the one before it is written, and hashed while the next one is read. A and B are combined module by
module; memory is bounded by one module of every source and a batch of results.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from coordinator.aggregation.blocks import blocks
from coordinator.aggregation.output_writer import BATCH_BYTES, Receiver, Writer, begin, outputs
from coordinator.aggregation.part import StagedWeights, StoredState
from coordinator.aggregation.state_reader import StoredFactors, Values, read_columns, room
from coordinator.aggregation.voices import fall_back_to_own, rows_with_voices
from coordinator.db.engine import Database
from coordinator.storage.staging import Staging
from coordinator.strategies.base import Cohort, Floats, Module, Robust, Strategy, Weights, modules_of
from coordinator.strategies.opening import OpenedPlan
from schemas.maths.adapter import Shape, factor_of
from schemas.maths.factors import Factors


def combine(
    staging: Staging,
    opened: OpenedPlan,
    weights: Weights,
    states: Mapping[str, StoredState],
    receivers: Sequence[Receiver],
) -> dict[str, StagedWeights]:
    """Stage the receivers' weights as the plan's strategy computes them, and return them by client."""
    if not opened.traits.combines:
        # An average needs no module as a whole, so that it is computed in blocks of columns.
        return mix(staging, weights, states, receivers, opened.strategy.robust)
    stored = StoredFactors(staging.database, states)
    least = opened.plan.privacy.min_voices
    if least > 1 and opened.traits.rescales:
        weights = _require_module_voices(opened.strategy, stored, weights, receivers, least)
    return _combine_factors(staging, opened.strategy, stored, weights, receivers)


def mix(
    staging: Staging,
    weights: Weights,
    states: Mapping[str, StoredState],
    receivers: Sequence[Receiver],
    robust: Robust | None = None,
) -> dict[str, StagedWeights]:
    """Stage the receivers' averages, and return them by client.

    `robust` replaces the mean of the clients that have weight for a receiver (`Strategy.robust`).
    """
    bodies = begin(staging, weights, receivers)
    firsts = [body.receivers[0] for body in bodies]
    # The writer's buffer is a part of the memory of the aggregation.
    batch_bytes = min(BATCH_BYTES, staging.block_bytes // 8)
    with Writer(staging.database, batch_bytes=batch_bytes) as writer:
        for columns in read_blocks(
            staging.database, weights, states, firsts, block_bytes=staging.block_bytes - batch_bytes
        ):
            # The columns are read: the values before them are written while the product is computed.
            writer.flush()
            product = columns.product(writer.spare()) if robust is None else columns.robust(robust)
            writer.wait()
            writer.submit([bodies[place] for place in columns.places], product)
            del columns  # so that its memory is reused, or freed before more is allocated
            staging.between()
        writer.flush(at_least=0)
        writer.wait()
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


def read_blocks(
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
    # A newcomer has no state yet: its layout is that of the weights to be computed.
    every = [layouts[client] if client in layouts else states[client].layout for client in clients]
    stored = [states.get(client) for client in clients]
    values: Values | None = None
    for block in blocks(every, rows.keys(), block_bytes, kind=weights.cohort.kind):
        receiving = [row for row in rows if row in block.begins]
        block_weights = weights.of_module(block.module)[receiving]  # (R, N)
        used = [place for place in block.begins if block_weights[:, place].any()]
        values = room(len(used), block.size, values)
        read_columns(database, stored, block, used, values)
        yield Columns([rows[row] for row in receiving], block_weights[:, used], values)


def _combine_factors(
    staging: Staging,
    strategy: Strategy,
    stored: StoredFactors,
    weights: Weights,
    receivers: Sequence[Receiver],
) -> dict[str, StagedWeights]:
    rows = {facts.client: row for row, facts in enumerate(weights.cohort.clients)}
    bodies = begin(staging, weights, receivers)
    forms = [modules_of(body.receivers[0].layout) for body in bodies]
    with Writer(staging.database, batch_bytes=BATCH_BYTES) as writer:
        for module in sorted({module for form in forms for module in form}):
            # What was flushed must be written before the next read: on SQLite a writer shuts readers out.
            writer.wait()
            module_weights = weights.of_module(module)
            combined_by_row: dict[bytes, Factors] = {}
            for body, form in zip(bodies, forms, strict=True):
                if module in form:
                    row = module_weights[rows[body.receivers[0].client]]
                    # Receivers with equal weights get equal factors: each distinct row is combined once per
                    # module.
                    combined = combined_by_row.get(row.tobytes())
                    if combined is None:
                        sources = stored.sources(weights, module, row)
                        combined = strategy.combine(sources) if sources else _zeros(dict(form[module]))
                        combined_by_row[row.tobytes()] = combined
                    rank = dict(form[module])[f"{module}.A"][0]
                    writer.submit([body], _flat(combined.of_rank(rank))[None])
            writer.flush()
            staging.between()
        writer.flush(at_least=0)
        writer.wait()
    return outputs(bodies)


@dataclass(frozen=True, slots=True)
class _PerModule:
    """Weights of each module by itself."""

    cohort: Cohort
    weights: Mapping[Module, Floats]

    def of_module(self, module: Module) -> Floats:
        return self.weights[module]


def _require_module_voices(
    strategy: Strategy, stored: StoredFactors, weights: Weights, receivers: Sequence[Receiver], least: int
) -> Weights:
    """Require voices in each module by the shares that `combine` uses: weights times strengths."""
    cohort, weights_by_module = weights.cohort, dict[Module, Floats]()
    for module in sorted({module for receiver in receivers for module in modules_of(receiver.layout)}):
        rows = weights.of_module(module)
        # Strengths are those of a client's own factors, so that all sources are read once per module.
        is_source = np.asarray(rows.any(axis=0), np.float64)
        strengths = np.zeros(len(is_source))
        sources = stored.sources(weights, module, is_source)
        strengths[is_source > 0] = [strategy.strength(source.factors) for source in sources]
        weights_by_module[module] = fall_back_to_own(rows, rows_with_voices(rows * strengths, least), cohort)
    return _PerModule(cohort, weights_by_module)


def _flat(factors: Factors) -> Values:
    return np.concatenate([factors.A.ravel(), factors.B.ravel()])


def _zeros(shapes: Mapping[str, Shape]) -> Factors:
    values_by_factor = {factor_of(tensor): np.zeros(shape, np.float32) for tensor, shape in shapes.items()}
    return Factors(values_by_factor["A"], values_by_factor["B"])
