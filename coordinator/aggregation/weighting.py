"""Compute the weights of a round: the strategy's relevance, limited by the guard and `privacy.min_voices`."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from coordinator.aggregation.blocks import blocks
from coordinator.aggregation.guard import GuardReport, guard_weights
from coordinator.aggregation.state_reader import StoredState, read_columns
from coordinator.aggregation.voices import require_voices
from coordinator.db.engine import Database
from coordinator.strategies.base import Cohort, Floats, Kind, Weighing, Weights
from coordinator.strategies.opening import OpenedPlan
from schemas.maths.start import start_values

_COPIES = 4
"""Memory per value in float32 values: as read, in float64 for the product, and the copy of BLAS."""


def products(
    database: Database,
    weighing: Weighing,
    states: Mapping[str, StoredState],
    receivers: Collection[str],
    *,
    seed: int,
    block_bytes: int,
    between: Callable[[], None],
) -> dict[Kind, Floats]:
    """Return d_i . d_j (N, N) per kind, in float64; zero for clients without weight for any receiver.

    Kinds in which receivers have no peers are left out. `between` is called after every block.
    """
    clients = [facts.client for facts in weighing.cohort.clients]
    kinds = weighing.cohort.kinds()
    relevant = {kind: _relevant(weighing, module, receivers) for kind, module in kinds.items()}
    inner = {kind: np.zeros((len(clients),) * 2) for kind, used in relevant.items() if used.any()}
    stored = [states.get(client) for client in clients]
    layouts = [state.layout if state is not None else {} for state in stored]
    for block in blocks(layouts, (), block_bytes // _COPIES, kind=weighing.cohort.kind):
        kind = weighing.cohort.kind(block.module)
        used = [place for place in block.begins if relevant[kind][place]]
        if not used:
            continue
        values = np.empty((len(used), block.size), "<f4")
        read_columns(database, stored, block, used, values)
        first = used[0]
        start = start_values(layouts[first], seed, block.begins[first], block.size)
        learnt = values.astype(np.float64)  # (used, size)
        if start is not None:
            learnt -= start
        inner[kind][np.ix_(used, used)] += learnt @ learnt.T
        between()
    return inner


def _relevant(weighing: Weighing, module: str, receivers: Collection[str]) -> NDArray[np.bool_]:
    has_weight = weighing.of_module(module) > 0
    np.fill_diagonal(has_weight, False)
    has_weight[[facts.client not in receivers for facts in weighing.cohort.clients]] = False
    return np.asarray(has_weight.any(axis=0) | has_weight.any(axis=1), bool)


@dataclass(frozen=True, slots=True)
class SettledWeights:
    """The relevance of a round, the weights that are served, and their report; None = both are equal.

    `alone` are the clients that keep their own, or start from zeros, because a mixture has too few voices.
    """

    weighing: Weighing
    weights: Weights
    report: GuardReport | None
    alone: frozenset[str] = frozenset()


def settle_weights(
    database: Database,
    opened: OpenedPlan,
    cohort: Cohort,
    states: Mapping[str, StoredState],
    receivers: Collection[str],
    *,
    block_bytes: int,
    between: Callable[[], None],
) -> SettledWeights:
    """Weigh a cohort for its receivers; `between` is called after every block and every guarded client."""
    weighing = opened.strategy.weigh(cohort)
    weights, report = _guarded(
        database, opened, weighing, states, receivers, block_bytes=block_bytes, between=between
    )
    least = opened.plan.privacy.min_voices
    if least == 1:
        return SettledWeights(weighing, weights, report)
    served = require_voices(weights, least, common=opened.traits.base_delta)
    return SettledWeights(weighing, served, served.report(report, weights), served.alone)


def _guarded(
    database: Database,
    opened: OpenedPlan,
    weighing: Weighing,
    states: Mapping[str, StoredState],
    receivers: Collection[str],
    *,
    block_bytes: int,
    between: Callable[[], None],
) -> tuple[Weights, GuardReport | None]:
    caps = opened.strategy.caps
    if caps is None:
        return weighing, None
    inner = products(
        database,
        weighing,
        states,
        receivers,
        seed=opened.plan.training.seed,
        block_bytes=block_bytes,
        between=between,
    )
    limited = guard_weights(weighing, inner, caps, between)
    return limited, limited.report()
