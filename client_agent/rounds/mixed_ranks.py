"""Clients of one base model whose adapters have different ranks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from client_agent.adapters.ranks import rank_of
from client_agent.rounds.part import Part
from schemas.maths.factors import State
from schemas.messages.federations import AdapterPlan

if TYPE_CHECKING:
    from client_agent.adapters.base import Adapter


@dataclass(frozen=True, slots=True)
class MixedRanks(Part):
    """A client has the rank of its last adapter, at first one of its choice from `least` to the plan's."""

    excludes = frozenset()

    least: int

    def adapter_plan(self, plan: AdapterPlan, state: State | None, lora_rank: int | None) -> AdapterPlan:
        first = min(plan.rank, max(self.least, lora_rank or plan.rank))
        return plan.model_copy(update={"rank": rank_of(state) if state is not None else first})

    def continues_optimiser(self, adapter: Adapter, stored: State) -> bool:
        return has_moments_of(adapter, stored)


def has_moments_of(adapter: Adapter, stored: State) -> bool:
    """Whether stored moments of AdamW have the shapes of an adapter's parameters: none was pruned since."""
    shapes = {f"{name}.exp_avg": tuple(tensor.shape) for name, tensor in adapter.named_parameters().items()}
    return shapes == {name: values.shape for name, values in stored.items() if name.endswith(".exp_avg")}
