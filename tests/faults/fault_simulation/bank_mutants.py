"""Faults planted in a bank of experts: in its values, its index, and its events."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from coordinator.aggregation import bank_round
from coordinator.experts import announcements, registry
from coordinator.experts.current_bank import index_of
from schemas.maths.bank import SHARED
from tests.faults.fault_simulation.fault_rates import FaultRates, Plan
from tests.faults.fault_simulation.planting import omits, replaces


def banked(plan: Plan, _: FaultRates) -> bool:
    return plan.summed is not None and plan.summed.bank is not None


def _is_born(plan: Plan, _: FaultRates) -> bool:
    bank = plan.summed.bank if plan.summed is not None else None
    return bank is not None and bank.birth_patience == 1


def _is_merged(plan: Plan, _: FaultRates) -> bool:
    bank = plan.summed.bank if plan.summed is not None else None
    return bank is not None and bank.merge_patience == 1


omits("changes a bank and tells nobody", announcements, "announce", banked)


@replaces(bank_round, "next_index", banked)
def serves_the_index_of_the_round_before(_: Callable[..., Any], current: Any, *__: Any) -> Any:
    """Clients download experts as they were."""
    return index_of(current.bank, current.revisions, current.since)


@replaces(bank_round, "_newborn", _is_born)
def bears_experts_with_the_shared_one_in_them(
    newborn: Callable[..., Any], model: Any, total: Any, expert: int
) -> Any:
    """The shared expert counts twice, as in the first design."""
    shared: Mapping[str, Any] = model.state(SHARED, {})
    return {
        name: np.asarray(values + shared[name], np.float32)
        for name, values in newborn(model, total, expert).items()
    }


@replaces(registry, "_with_expert", _is_merged)
def keeps_merged_experts_active(with_expert: Callable[..., Any], bank: Any, expert: Any) -> Any:
    """A merged expert is told and never ends."""
    return bank if expert.status == "merged" else with_expert(bank, expert)
