"""Fed-VEMoE: a shared expert and a bank of specialists, chosen by clients in private, under sums only.

The changes of an expert are summed over the clients that trained it, so that the coordinator sees no single
update. With `shared` false the bank is that of IFCA (Ghosh et al. 2020): one of k models, chosen by loss.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Annotated, ClassVar, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from coordinator.strategies import base
from coordinator.strategies.averaging import mean_of_all
from coordinator.strategies.bank_rules import LEAST_WEIGHT, BankPlan, Rules
from coordinator.strategies.base import Cohort, Weighing
from coordinator.strategies.capabilities import Traits, Unfit
from coordinator.totals import Floats, JointValues, Outline, SegmentChange, Total
from schemas.maths.bank import counted_groups, m_step, most_chosen
from schemas.messages.base import field_error
from schemas.messages.federations import FederationPlan
from schemas.secure_sum.segments import WEIGHT, is_of_expert

_Count = Annotated[int, Field(ge=1, le=64)]
_Rounds = Annotated[int, Field(ge=0, le=1000)]
_Share = Annotated[float, Field(ge=0, le=1)]
_Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class Options(BaseModel):
    """The number of experts, the choice of clients among them, and the changes of the bank."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    experts: _Count = 6
    """The initial number of specialists, about twice the number of expected tasks."""
    most_experts: _Count = 12
    """The largest number of active specialists."""
    top_m: Annotated[int, Field(ge=2, le=8)] = 2
    """The number of experts that act in a client, the shared one included; above 2, a router weighs them."""
    shared: bool = True
    """Whether an expert that all clients train acts beside the specialists."""
    explore_rounds: Annotated[int, Field(ge=0, le=1000)] | None = None
    """The number of first rounds in which clients draw specialists at random; null = half, 10 at most."""
    probe_examples: Annotated[int, Field(ge=8, le=4096)] = 64
    """The approximate number of training examples that a client holds out to choose experts."""
    tau: _Positive | None = None
    """The temperature of the responsibilities; null = the spread of a client's losses."""
    gamma: _Positive = 1.0
    """The temperature of the token router."""
    consistency: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.1
    """The weight of the distance between token weights and responsibilities; 0 = none."""
    regret_above: _Share = 0.1
    """A client rejects all experts if its personal model is better by more than this share of the shared
    expert's loss; 1 = never.
    """
    server_rate: Annotated[float, Field(gt=0, le=2)] = 1.0
    """The share of the mean change by which an expert moves in a round."""
    birth_share: _Share = 0.1
    """The share of members that must reject all experts before one is born, at least `k_min` of them."""
    birth_patience: _Count = 2
    """The number of consecutive rounds in which that share must reject all experts."""
    birth_cooldown: _Rounds = 3
    """The number of rounds after a birth without another birth."""
    grace: _Rounds = 3
    """The number of rounds in which a new expert is neither pruned nor merged; the initial experts have them
    after the exploring rounds.
    """
    prune_below: _Share = 0.02
    """The average share of members below which an expert gets a strike in a round."""
    prune_until: _Share = 0.05
    """The average share of members above which the strikes of an expert are cleared."""
    prune_patience: _Count = 3
    """The number of strikes after which an expert is archived."""
    prune_cooldown: _Rounds = 2
    """The number of rounds after an archived expert in which no other expert is archived."""
    merge_above: _Share = 0.95
    """The smallest cosine, as functions, at which two experts are alike."""
    merge_patience: _Count = 2
    """The number of consecutive rounds in which two experts must be alike before they are merged."""

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.most_experts < self.experts:
            raise field_error(f"must be at least experts = {self.experts}", "most_experts")
        if self.top_m - 1 > self.experts:
            raise field_error(f"needs {self.top_m - 1} specialists; experts is {self.experts}", "top_m")
        if self.prune_until < self.prune_below:
            raise field_error(f"must be at least prune_below = {self.prune_below:g}", "prune_until")
        return self


@dataclass(frozen=True, slots=True)
class Strategy(base.Strategy):
    """theta_k + rate sum w_ik delta_ik / sum w_ik over those who trained k, for each summed expert."""

    traits: ClassVar[Traits] = Traits(sums=True)

    options: Options

    def weigh(self, cohort: Cohort) -> Weighing:
        return mean_of_all(cohort)

    def unfit(self, plan: FederationPlan) -> Unfit | None:
        if plan.privacy.secure_sum is None:
            return Unfit(
                "privacy.secure_sum",
                "sums: set it, with masking none if the coordinator may see every update",
            )
        if plan.adapter.same_architecture_rank or plan.adapter.private_rank:
            field = "same_architecture_rank" if plan.adapter.same_architecture_rank else "private_rank"
            return Unfit(f"adapter.{field}", "0: experts over P and Q have no LoRA beside them")
        return None

    def counts(self, outline: Outline) -> tuple[str, ...]:
        return counted_groups(outline.segments)

    @property
    def choices(self) -> int:
        return most_chosen(self.options.top_m)

    @property
    def bank(self) -> BankPlan:
        options = self.options
        rules = Rules(
            k_max=options.most_experts,
            birth_share=options.birth_share,
            birth_patience=options.birth_patience,
            birth_cooldown=options.birth_cooldown,
            grace=options.grace,
            prune_below=options.prune_below,
            prune_until=options.prune_until,
            prune_patience=options.prune_patience,
            prune_cooldown=options.prune_cooldown,
            merge_above=options.merge_above,
            merge_patience=options.merge_patience,
        )
        return BankPlan(options.experts, options.explore_rounds, rules)

    def step(self, joint: JointValues, total: Total) -> Iterator[SegmentChange]:
        """Yield the segments of the shared expert, and of each specialist with enough members."""
        for segment in joint.segments:
            if not is_of_expert(segment):
                weight = total.number(WEIGHT) if self.options.shared else 0.0
            elif segment in total.segments:
                weight = total.number(f"{segment.partition('.')[0]}.{WEIGHT}")
            else:
                continue
            if weight >= LEAST_WEIGHT:
                yield SegmentChange(segment, partial(self._moved, joint, total, weight, segment))

    def _moved(
        self, joint: JointValues, total: Total, weight: float, segment: str, begin: int, count: int
    ) -> Floats:
        values, summed = joint.read(segment, begin, count), total.values(segment, begin, count)
        return m_step(values, summed, weight, self.options.server_rate)
