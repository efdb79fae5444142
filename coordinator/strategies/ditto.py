"""Ditto (arXiv 2012.04221, ICML 2021): FedAvg, and beside it each client trains an adapter of its own."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Annotated, ClassVar

from pydantic import BaseModel, ConfigDict, Field

from coordinator.strategies import base
from coordinator.strategies.averaging import Aggregate, aggregated, mean_of_all, summed_mean, unfit_for_sums
from coordinator.strategies.base import Cohort, Robust, Weighing
from coordinator.strategies.capabilities import Traits, Unfit
from coordinator.totals import Joint, Revised, Total
from schemas.messages.federations import FederationPlan


class Options(BaseModel):
    """How strongly each client's own adapter is pulled to the common one."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, use_attribute_docstrings=True)

    pull: Annotated[float, Field(ge=0)] = 0.1
    """The weight lambda of |v - w|^2 / 2 in the loss of a client's own adapter v, with w the adapter that it
    was served in this round; 0 trains alone.
    """
    aggregate: Aggregate = "mean"
    """How the values of clients become one: `mean`, or value by value `median` or `trimmed_mean`, for which
    all clients count alike.
    """


@dataclass(frozen=True, slots=True)
class Strategy(base.Strategy):
    """One mean for all clients; what they train of their own never travels."""

    traits: ClassVar[Traits] = Traits(lora_only=True, sums=True)

    options: Options

    @property
    def robust(self) -> Robust | None:
        how = self.options.aggregate
        return None if how == "mean" else partial(aggregated, how=how)

    def unfit(self, plan: FederationPlan) -> Unfit | None:
        return unfit_for_sums(self.options.aggregate, plan)

    def weigh(self, cohort: Cohort) -> Weighing:
        return mean_of_all(cohort)

    def step(self, joint: Joint, total: Total) -> Iterator[Revised]:
        return summed_mean(joint, total)
