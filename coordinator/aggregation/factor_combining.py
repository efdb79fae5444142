"""Write the weights of a round, for strategies that average values and for those that combine A and B.

Combining goes module by module; its memory is bounded by one module of every source and a batch of results.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from coordinator.aggregation.factor_reader import StoredFactors
from coordinator.aggregation.mixing import mix
from coordinator.aggregation.output_writer import (
    BATCH_BYTES,
    Receiver,
    StagedOutput,
    Writer,
    begin,
    discard,
    outputs,
)
from coordinator.aggregation.state_reader import StoredState, Values
from coordinator.aggregation.voices import fall_back_to_own, rows_with_voices
from coordinator.db.engine import Database
from coordinator.strategies.base import Cohort, Floats, Module, Strategy, Weights, modules_of
from coordinator.strategies.opening import OpenedPlan
from schemas.maths.adapter import Shape, factor_of
from schemas.maths.factors import Factors


def write_weights(
    database: Database,
    opened: OpenedPlan,
    weights: Weights,
    states: Mapping[str, StoredState],
    receivers: Sequence[Receiver],
    *,
    block_bytes: int,
    between: Callable[[], None],
) -> dict[str, StagedOutput]:
    """Write the receivers' weights as staged payloads, as the plan's strategy computes them; by client.

    `between` is called after every block or module; if it raises, the staged payloads are discarded.
    """
    if not opened.traits.combines:
        return mix(
            database,
            weights,
            states,
            receivers,
            block_bytes=block_bytes,
            between=between,
            robust=opened.strategy.robust,
        )
    stored = StoredFactors(database, states)
    least = opened.plan.privacy.min_voices
    if least > 1 and opened.traits.rescales:
        weights = _with_voices(opened.strategy, stored, weights, receivers, least)
    return _combine(database, opened.strategy, stored, weights, receivers, between)


def _combine(
    database: Database,
    strategy: Strategy,
    stored: StoredFactors,
    weights: Weights,
    receivers: Sequence[Receiver],
    between: Callable[[], None],
) -> dict[str, StagedOutput]:
    rows = {facts.client: row for row, facts in enumerate(weights.cohort.clients)}
    bodies = begin(database, weights, receivers)
    forms = [modules_of(body.receivers[0].layout) for body in bodies]
    try:
        with Writer(database, batch_bytes=BATCH_BYTES) as writer:
            for module in sorted({module for form in forms for module in form}):
                writer.wait()
                of_module = weights.of_module(module)
                by_row: dict[bytes, Factors] = {}
                for body, form in zip(bodies, forms, strict=True):
                    if module in form:
                        row = of_module[rows[body.receivers[0].client]]
                        combined = by_row.get(row.tobytes())
                        if combined is None:
                            sources = stored.sources(weights, module, row)
                            combined = strategy.combine(sources) if sources else zeros(dict(form[module]))
                            by_row[row.tobytes()] = combined
                        rank = dict(form[module])[f"{module}.A"][0]
                        writer.submit([body], in_a_row(combined.of_rank(rank))[None])
                writer.flush()
                between()
            writer.flush(at_least=0)
            writer.wait()
    except BaseException:
        discard(database, outputs(bodies).values())
        raise
    return outputs(bodies)


@dataclass(frozen=True, slots=True)
class _PerModule:
    """Weights of each module by itself."""

    cohort: Cohort
    weights: Mapping[Module, Floats]

    def of_module(self, module: Module) -> Floats:
        return self.weights[module]


def _with_voices(
    strategy: Strategy, stored: StoredFactors, weights: Weights, receivers: Sequence[Receiver], least: int
) -> Weights:
    """Require voices in each module by the shares that `combine` uses: weights times strengths."""
    cohort, by_module = weights.cohort, dict[Module, Floats]()
    for module in sorted({module for receiver in receivers for module in modules_of(receiver.layout)}):
        rows = weights.of_module(module)
        is_source = np.asarray(rows.any(axis=0), np.float64)
        strengths = np.zeros(len(is_source))
        sources = stored.sources(weights, module, is_source)
        strengths[is_source > 0] = [strategy.strength(source.factors) for source in sources]
        by_module[module] = fall_back_to_own(rows, rows_with_voices(rows * strengths, least), cohort)
    return _PerModule(cohort, by_module)


def in_a_row(factors: Factors) -> Values:
    return np.concatenate([factors.A.ravel(), factors.B.ravel()])


def zeros(shapes: Mapping[str, Shape]) -> Factors:
    by_factor = {factor_of(tensor): np.zeros(shape, np.float32) for tensor, shape in shapes.items()}
    return Factors(by_factor["A"], by_factor["B"])
