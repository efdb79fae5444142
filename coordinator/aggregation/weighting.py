"""Settle how much each client is given of whom: what the strategy says, held back by the guard and to
`privacy.min_voices`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from coordinator.aggregation.blocks import blocks
from coordinator.aggregation.guard import GuardReport, guarded
from coordinator.aggregation.mixing import Weights
from coordinator.aggregation.state_reader import StoredState, read_columns
from coordinator.aggregation.voices import voiced
from coordinator.db.engine import Database
from coordinator.strategies.base import Cohort, Floats, Kind, Weighing
from coordinator.strategies.opening import OpenedPlan
from schemas.maths.start import start_values

_COPIES = 4
"""What a value costs: float32 as it is read, float64 as it is multiplied, and the copy that BLAS makes."""


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
    """Give d_i . d_j (N, N) per kind, in float64; zero for those that no receiver listens to.

    A kind in which no receiver listens to anybody else is left out. `between` is called after every block.
    """
    clients = [facts.client for facts in weighing.cohort.clients]
    heard = {kind: _heard(weighing, module, receivers) for kind, module in weighing.cohort.kinds().items()}
    made = {kind: np.zeros((len(clients),) * 2) for kind, wanted in heard.items() if wanted.any()}
    held = [states.get(client) for client in clients]
    layouts = [state.layout if state is not None else {} for state in held]
    for block in blocks(layouts, (), block_bytes // _COPIES, kind=weighing.cohort.kind):
        kind = weighing.cohort.kind(block.module)
        used = [place for place in block.begins if heard[kind][place]]
        if not used:
            continue
        values = np.empty((len(used), block.size), "<f4")
        read_columns(database, held, block, used, values)
        first = used[0]
        start = start_values(layouts[first], seed, block.begins[first], block.size)
        learnt = values.astype(np.float64)  # (used, size)
        if start is not None:
            learnt -= start
        made[kind][np.ix_(used, used)] += learnt @ learnt.T
        between()
    return made


def _heard(weighing: Weighing, module: str, receivers: Collection[str]) -> NDArray[np.bool_]:
    """Say whose update matters: that of whom a receiver listens to, and of a receiver that does; (N,)."""
    listens = weighing.of_module(module) > 0
    np.fill_diagonal(listens, False)
    listens[[facts.client not in receivers for facts in weighing.cohort.clients]] = False
    return np.asarray(listens.any(axis=0) | listens.any(axis=1), bool)


@dataclass(frozen=True, slots=True)
class Weighed:
    """Whom each client listens to, what is served of it, and that in short; None = it is what was asked for.

    `alone` are the clients that keep their own, or start from nothing, because too few others would be mixed.
    """

    asked: Weighing
    weights: Weights
    told: GuardReport | None
    alone: frozenset[str] = frozenset()


def weighed(
    database: Database,
    opened: OpenedPlan,
    cohort: Cohort,
    states: Mapping[str, StoredState],
    receivers: Collection[str],
    *,
    block_bytes: int,
    between: Callable[[], None],
) -> Weighed:
    """Weigh a cohort for those of it that are served.

    `between` is called after every block that is read and every client that is guarded.
    """
    asked = opened.strategy.weigh(cohort)
    weights, told = _guarded(
        database, opened, asked, states, receivers, block_bytes=block_bytes, between=between
    )
    least = opened.plan.privacy.min_voices
    if least == 1:
        return Weighed(asked, weights, told)
    served = voiced(weights, least, common=opened.traits.base_delta)
    return Weighed(asked, served, served.told(told, weights), served.alone)


def _guarded(
    database: Database,
    opened: OpenedPlan,
    asked: Weighing,
    states: Mapping[str, StoredState],
    receivers: Collection[str],
    *,
    block_bytes: int,
    between: Callable[[], None],
) -> tuple[Weights, GuardReport | None]:
    caps = opened.strategy.caps
    if caps is None:
        return asked, None
    found = products(
        database,
        asked,
        states,
        receivers,
        seed=opened.plan.training.seed,
        block_bytes=block_bytes,
        between=between,
    )
    held_back = guarded(asked, found, caps, between)
    return held_back, held_back.told()
