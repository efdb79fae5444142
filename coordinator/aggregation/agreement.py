"""How updates lie to each other: d_i . d_j of everybody, in one pass over the states, in bounded memory.

d is a client's state minus the start that all have in common. Products are of one kind of module each, since
what the clients share differs between kinds. Decides nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

import numpy as np
from numpy.typing import NDArray

from coordinator.aggregation.columns import blocks
from coordinator.aggregation.reading import StoredState, read_columns
from coordinator.database import Database
from coordinator.strategies.base import Floats, Kind, Weighing
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
