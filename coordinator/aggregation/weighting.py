"""Limit the weights of a round, the strategy's relevance, by the guard and by `privacy.min_voices`."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from coordinator.aggregation.blocks import Block, blocks
from coordinator.aggregation.guard import GuardReport, guard_weights
from coordinator.aggregation.part import SettledWeights, StoredState
from coordinator.aggregation.state_reader import read_columns
from coordinator.aggregation.voices import require_voices
from coordinator.db.engine import Database
from coordinator.storage.staging import Staging
from coordinator.strategies.base import Cohort, Floats, Kind, Weighing, Weights
from coordinator.strategies.opening import OpenedPlan
from schemas.maths.start import start_values

# Memory per value in float32 values: the state, its reference, and what BLAS copies.
_COPIES = 3
# Columns that are multiplied in float32, which takes a third of the time of float64. The relative error of
# such a sum is below 1e-6; the sums of columns are added in float64.
_FLOAT32_COLUMNS = 32768


def products(
    staging: Staging,
    weighing: Weighing,
    states: Mapping[str, StoredState],
    receivers: Collection[str],
    seed: int,
) -> dict[Kind, Floats]:
    """Return d_i . d_j (N, N) per kind, in float64; zero for clients without weight for any receiver.

    d_i is the state minus the common start. Kinds in which receivers have no peers are left out.
    """
    cohort, kinds = weighing.cohort, weighing.cohort.kinds()
    relevant = {kind: _relevant(weighing, module, receivers) for kind, module in kinds.items()}
    return inner_products(staging, cohort, states, {}, relevant, seed)


def inner_products(
    staging: Staging,
    cohort: Cohort,
    states: Mapping[str, StoredState],
    references: Mapping[str, StoredState],
    used: Mapping[Kind, NDArray[np.bool_]],
    seed: int,
) -> dict[Kind, Floats]:
    """Return d_i . d_j (N, N) per kind, where d_i is the state of i minus its reference.

    Their error is below 1e-6 |d_i| |d_j|.

    Args:
        references: by client; without one, and where it is zero, it is the common start that the plan's
            `seed` determines.
        used: per kind, the clients (N,) that are compared; the products of others are zero, and kinds without
            any are left out.
    """
    clients = [facts.client for facts in cohort.clients]
    inner = {kind: np.zeros((len(clients),) * 2) for kind, members in used.items() if members.any()}
    stored = [states.get(client) for client in clients] + [references.get(client) for client in clients]
    layouts = [state.layout if state is not None else {} for state in stored]
    for block in blocks(layouts, (), staging.block_bytes // _COPIES, kind=cohort.kind):
        kind = cohort.kind(block.module)
        places = [place for place in block.begins if place < len(clients) and used[kind][place]]
        if not places:
            continue
        learnt = _read(staging.database, stored, block, places)  # (places, size)
        rows = [row for row, place in enumerate(places) if place + len(clients) in block.begins]
        if rows:
            references_of_rows = [places[row] + len(clients) for row in rows]
            began = _read(staging.database, stored, block, references_of_rows)
            learnt[rows] -= began
            # Zeros are served to clients for which there is nothing yet: they stand for the common start.
            rows = [row for row, values in zip(rows, began, strict=True) if values.any()]
        if len(rows) < len(places):
            # All clients of a block have the same tensors, so that any of them gives the start. It is
            # subtracted because nobody learnt it: with it, all clients would look alike.
            first = places[0]
            start = start_values(layouts[first], seed, block.begins[first], block.size)
            if start is not None:
                learnt[np.setdiff1d(np.arange(len(places)), rows)] -= start
        inner[kind][np.ix_(places, places)] += _products_of_rows(learnt)
        staging.between()
    return inner


def _read(
    database: Database, stored: Sequence[StoredState | None], block: Block, places: Sequence[int]
) -> NDArray[np.float32]:
    values = np.empty((len(places), block.size), "<f4")
    read_columns(database, stored, block, places, values)
    return values


def _products_of_rows(values: NDArray[np.float32]) -> Floats:
    """Return values @ values.T, (n, n), of values (n, columns)."""
    total = np.zeros((len(values), len(values)))
    for begin in range(0, values.shape[1], _FLOAT32_COLUMNS):
        columns = values[:, begin : begin + _FLOAT32_COLUMNS]
        with np.errstate(over="ignore", invalid="ignore"):
            product = columns @ columns.T
        if not np.isfinite(product).all():  # squares of values above 1e19 are beyond float32
            wide = columns.astype(np.float64)
            total += wide @ wide.T
        else:
            total += product
    return total


def _relevant(weighing: Weighing, module: str, receivers: Collection[str]) -> NDArray[np.bool_]:
    has_weight = weighing.of_module(module) > 0
    np.fill_diagonal(has_weight, False)
    has_weight[[facts.client not in receivers for facts in weighing.cohort.clients]] = False
    return np.asarray(has_weight.any(axis=0) | has_weight.any(axis=1), bool)


def guarded_weights(
    staging: Staging,
    opened: OpenedPlan,
    weighing: Weighing,
    states: Mapping[str, StoredState],
    receivers: Collection[str],
) -> SettledWeights:
    """Return the weights that a weighing's receivers are served, after the guard and with enough voices."""
    weights, report = _guarded(staging, opened, weighing, states, receivers)
    least = opened.plan.privacy.min_voices
    if least == 1:
        return SettledWeights(weighing, weights, report)
    served = require_voices(weights, least, common=opened.options.base_delta)
    return SettledWeights(weighing, served, served.report(report, weights), served.alone)


def _guarded(
    staging: Staging,
    opened: OpenedPlan,
    weighing: Weighing,
    states: Mapping[str, StoredState],
    receivers: Collection[str],
) -> tuple[Weights, GuardReport | None]:
    caps = opened.strategy.caps
    if caps is None:
        return weighing, None
    inner = products(staging, weighing, states, receivers, opened.plan.training.seed)
    limited = guard_weights(weighing, inner, caps, staging.between)
    return limited, limited.report()
