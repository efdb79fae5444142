"""Settle how much each client is given of whom: what the strategy says, held back by the guard and to
`privacy.min_voices`."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from coordinator.aggregation.aggregate import Weights
from coordinator.aggregation.agreement import products
from coordinator.aggregation.guard import Told, guarded
from coordinator.aggregation.reading import StoredState
from coordinator.aggregation.voices import voiced
from coordinator.database import Database
from coordinator.lora_methods import Folding
from coordinator.strategies.base import Caps, Cohort, Weighing, make
from schemas.messages.federations import FederationPlan


@dataclass(frozen=True, slots=True)
class Weighed:
    """Whom each client listens to, what is served of it, and that in short; None = it is what was asked for.

    `alone` are the clients that keep their own, or start from nothing, because too few others would be mixed.
    """

    asked: Weighing
    weights: Weights
    told: Told | None
    alone: frozenset[str] = frozenset()


def weighed(
    database: Database,
    plan: FederationPlan,
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
    strategy = make(plan.strategy.name, plan.strategy.options)
    asked = strategy.weigh(cohort)
    weights, told = _guarded(
        database, plan, asked, strategy.caps, states, receivers, block_bytes=block_bytes, between=between
    )
    least = plan.privacy.min_voices
    if least == 1:
        return Weighed(asked, weights, told)
    served = voiced(weights, least, common=isinstance(strategy, Folding))
    return Weighed(asked, served, served.told(told, weights), served.alone)


def _guarded(
    database: Database,
    plan: FederationPlan,
    asked: Weighing,
    caps: Caps | None,
    states: Mapping[str, StoredState],
    receivers: Collection[str],
    *,
    block_bytes: int,
    between: Callable[[], None],
) -> tuple[Weights, Told | None]:
    if caps is None:
        return asked, None
    found = products(
        database,
        asked,
        states,
        receivers,
        seed=plan.training.seed,
        block_bytes=block_bytes,
        between=between,
    )
    held_back = guarded(asked, found, caps, between)
    return held_back, held_back.told()
