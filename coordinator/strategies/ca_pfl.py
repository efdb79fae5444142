"""CA-PFL, corrected: one common LoRA, of which each client sends most of what matters most to it.

theta <- theta + sum w_i kept_i over the clients of this round: what a client did not send counts as zero, and
stays with it for its next update (error feedback). The prior over importances travels beside A and B, and a
client sends .9 of the common one plus .1 of its own, so that the same mean is its moving average. What
differs from the published method is told in docs/decisions/0024. Knows no adapter and no byte.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from pydantic import ConfigDict, model_validator

from coordinator.strategies.averaging import mean_of_all
from coordinator.strategies.base import Caps, Cohort, Weighing
from coordinator.strategies.capabilities import Unfit
from schemas.maths.adapter import Layout, prior_layout
from schemas.messages.base import field_error
from schemas.messages.federations import FederationPlan
from schemas.messages.importance import ImportancePlan


class Options(ImportancePlan):
    """How importance is learnt and what is sent by it; all of it happens at the clients."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _budget_is_of_the_wire(cls, said: object) -> object:
        """Read plans that have an empty `max_bytes` here; one that is set belongs to `wire`."""
        if isinstance(said, dict) and "max_bytes" in said:
            if said["max_bytes"] is not None:
                raise field_error("is the plan's wire.max_bytes", "max_bytes")
            return {name: value for name, value in said.items() if name != "max_bytes"}
        return said


@dataclass(frozen=True, slots=True)
class Strategy:
    """One mean, by examples, of those who delivered this round."""

    needs_signature: ClassVar[bool] = False

    options: Options

    @property
    def gated(self) -> bool:
        """Never: an ordinary LoRA has no global branch."""
        return False

    @property
    def caps(self) -> Caps | None:
        """None: what is common is everybody's mean."""
        return None

    def beside(self, layout: Layout) -> Layout:
        """Add the prior of every module, as what it is more than 1: zeros are where it starts."""
        return prior_layout(layout)

    def unfit(self, plan: FederationPlan) -> Unfit | None:
        """Ask for A and B, and for sparse differences to the weights served, which feed back their losses."""
        recipe = plan.wire.recipe
        if plan.adapter.kind != "lora":
            return Unfit("adapter.kind", "lora: it speaks of the ranks of A and B")
        if recipe.reference != "served" or recipe.density == 1:
            return Unfit(
                "wire.recipe",
                'reference "served" and a density below 1, the most that may ever be sent, such as '
                '{"reference": "served", "density": 0.9, "values": "int8"}',
            )
        return None

    def weigh(self, cohort: Cohort) -> Weighing:
        """w_ij = n_j / the sum over all j of this round that i shares something with.

        Whoever is absent counts for nothing: its state is that of an older common one.
        """
        return mean_of_all(cohort, present_only=True)
