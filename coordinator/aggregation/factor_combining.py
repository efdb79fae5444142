"""Make weights module by module where a strategy wants more than G = W U: it sees A and B of its sources.

Memory is bounded by one module of every source. Everything else, how receivers of equal values share one
payload included, is as in `mixing`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from coordinator.aggregation.factor_reader import StoredFactors
from coordinator.aggregation.mixing import Weights, alike, mix
from coordinator.aggregation.output_writer import Receiver, StagedOutput, append, begin, discard
from coordinator.aggregation.state_reader import StoredState, Values
from coordinator.aggregation.voices import kept_own, rows_with_voices
from coordinator.db.engine import Database
from coordinator.strategies.base import Cohort, Floats, Module, Strategy, modules_of
from coordinator.strategies.opening import OpenedPlan
from schemas.maths.adapter import Shape, factor_of
from schemas.maths.factors import Factors


def weights_of(
    database: Database,
    opened: OpenedPlan,
    weights: Weights,
    states: Mapping[str, StoredState],
    receivers: Sequence[Receiver],
    *,
    block_bytes: int,
    between: Callable[[], None],
) -> dict[str, StagedOutput]:
    """Write the receivers' weights as staged payloads, as the plan's strategy makes them.

    `between` is called again and again; what it raises ends the work and what was staged is discarded.
    """
    if opened.traits.combines:
        least = opened.plan.privacy.min_voices
        return combine(database, opened.strategy, weights, states, receivers, least=least, between=between)
    return mix(database, weights, states, receivers, block_bytes=block_bytes, between=between)


def combine(
    database: Database,
    strategy: Strategy,
    weights: Weights,
    states: Mapping[str, StoredState],
    receivers: Sequence[Receiver],
    *,
    least: int,
    between: Callable[[], None],
) -> dict[str, StagedOutput]:
    """Write what a strategy combines for each receiver, of `least` voices beside its own; by client."""
    stored = StoredFactors(database, states)
    if least > 1 and strategy.traits.rescales:
        weights = _with_voices(strategy, stored, weights, receivers, least)
    rows = {facts.client: row for row, facts in enumerate(weights.cohort.clients)}
    bodies = begin(database, alike(weights, receivers))
    forms = [modules_of(body.receivers[0].layout) for body in bodies]
    try:
        for module in sorted({module for form in forms for module in form}):
            given = weights.of_module(module)
            combined: dict[bytes, Factors] = {}
            for body, form in zip(bodies, forms, strict=True):
                if module in form:
                    row = given[rows[body.receivers[0].client]]
                    made = combined.get(row.tobytes())
                    if made is None:
                        sources = stored.sources(weights, module, row)
                        made = strategy.combine(sources) if sources else zeros(dict(form[module]))
                        combined[row.tobytes()] = made
                    rank = dict(form[module])[f"{module}.A"][0]
                    append(database, [body], in_a_row(made.of_rank(rank))[None])
            between()
    except BaseException:
        discard(database, [made for body in bodies for made in body.made().values()])
        raise
    return {client: made for body in bodies for client, made in body.made().items()}


@dataclass(frozen=True, slots=True)
class _PerModule:
    """Weights of each module by itself."""

    cohort: Cohort
    weights: Mapping[Module, Floats]

    def of_module(self, module: Module) -> Floats:
        """Return the weights for one module, (N, N)."""
        return self.weights[module]


def _with_voices(
    strategy: Strategy, stored: StoredFactors, weights: Weights, receivers: Sequence[Receiver], least: int
) -> Weights:
    """Hold each module to its voices by the shares that it is combined with: weights times strengths."""
    cohort, held = weights.cohort, dict[Module, Floats]()
    for module in sorted({module for one in receivers for module in modules_of(one.layout)}):
        rows = weights.of_module(module)
        heard = np.asarray(rows.any(axis=0), np.float64)
        strengths = np.zeros(len(heard))
        sources = stored.sources(weights, module, heard)
        strengths[heard > 0] = [strategy.strength(source.factors) for source in sources]
        held[module] = kept_own(rows, rows_with_voices(rows * strengths, least), cohort)
    return _PerModule(cohort, held)


def in_a_row(factors: Factors) -> Values:
    """Give A and then B, as a layout has them, (n,)."""
    return np.concatenate([factors.A.ravel(), factors.B.ravel()])


def zeros(shapes: Mapping[str, Shape]) -> Factors:
    """Give a module's A and B as they are before anybody has learnt anything."""
    by_factor = {factor_of(tensor): np.zeros(shape, np.float32) for tensor, shape in shapes.items()}
    return Factors(by_factor["A"], by_factor["B"])
