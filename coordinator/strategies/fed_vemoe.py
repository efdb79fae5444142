"""Fed-VEMoE: a shared expert and a bank of specialists, chosen by clients in private, under sums only.

The changes of an expert are summed over the clients that trained it, so that the coordinator sees no single
update. With `shared` false the bank is that of IFCA (Ghosh et al. 2020): one of k models, chosen by loss.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

from coordinator.strategies import base
from coordinator.strategies.averaging import mean_of_all
from coordinator.strategies.bank_rules import LEAST_WEIGHT, BankPlan, Rules
from coordinator.strategies.base import Cohort, Weighing
from coordinator.strategies.capabilities import Traits, Unfit
from coordinator.totals import Floats, JointValues, SegmentChange, Total
from schemas.maths.bank import m_step
from schemas.messages.federations import FederationPlan
from schemas.secure_sum.segments import WEIGHT, is_of_expert
from schemas.strategies.fed_vemoe import FedVemoeOptions


@dataclass(frozen=True, slots=True)
class Strategy(base.Strategy):
    """theta_k + rate sum w_ik delta_ik / sum w_ik over those who trained k, for each summed expert."""

    traits: ClassVar[Traits] = Traits(sums=True)

    options: FedVemoeOptions

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
