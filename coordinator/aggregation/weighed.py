"""Settle how much each client is given of whom: what the strategy says, held back by the guard."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from coordinator.aggregation.aggregate import Weights
from coordinator.aggregation.agreement import products
from coordinator.aggregation.guard import Guarded, Told, guarded
from coordinator.aggregation.reading import StoredState
from coordinator.database import Database
from coordinator.strategies.base import Cohort, Weighing, make
from schemas.messages.federations import FederationPlan


@dataclass(frozen=True, slots=True)
class Weighed:
    """Whom each client listens to, what the guard made of it, and that in short; None = there is no guard."""

    asked: Weighing
    guarded: Guarded | None
    told: Told | None

    @property
    def weights(self) -> Weights:
        """What is served."""
        return self.asked if self.guarded is None else self.guarded


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
    if strategy.caps is None:
        return Weighed(asked, None, None)
    found = products(
        database,
        asked,
        states,
        receivers,
        seed=plan.training.seed,
        block_bytes=block_bytes,
        between=between,
    )
    held_back = guarded(asked, found, strategy.caps, between)
    return Weighed(asked, held_back, held_back.told())
