"""CA-PFL, corrected: one common LoRA; each client sends more values of the ranks that it finds important.

theta <- theta + sum w_i kept_i over the clients of this round: values that a client did not send count as
zero and join its next update (error feedback). The prior over importances travels beside A and B; a client
sends .9 of the common one plus .1 of its own, so that the mean is its moving average. Differences from the
published method: docs/decisions/0024.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from coordinator.strategies import base
from coordinator.strategies.averaging import mean_of_all
from coordinator.strategies.base import Cohort, Weighing
from coordinator.strategies.capabilities import Traits, Unfit
from schemas.messages.federations import FederationPlan


@dataclass(frozen=True, slots=True)
class Strategy(base.Strategy):
    """The mean of the updates of this round, weighted by examples."""

    traits: ClassVar[Traits] = Traits(
        per_client="lets each client choose the values that it sends by their importance to it",
    )

    def unfit(self, plan: FederationPlan) -> Unfit | None:
        """Require A and B, and sparse differences to the served weights, which feed back their losses."""
        recipe = plan.wire.recipe
        if plan.adapter.kind != "lora":
            return Unfit("adapter.kind", "lora, whose ranks it weighs")
        if recipe.reference != "served" or recipe.density == 1:
            return Unfit(
                "wire.recipe",
                'reference "served" and a density below 1, the most that may ever be sent, such as '
                '{"reference": "served", "density": 0.9, "values": "int8"}',
            )
        return None

    def weigh(self, cohort: Cohort) -> Weighing:
        """w_ij = n_j / the sum over all j of this round that i shares a module with.

        Absent clients do not count: their state is that of an older common adapter.
        """
        return mean_of_all(cohort, present_only=True)
