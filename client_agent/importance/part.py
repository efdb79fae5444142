"""CA-PFL in a round: clients learn the importance of the ranks of their adapter, and send by it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import ceil
from typing import TYPE_CHECKING, cast

from client_agent.adapters.variational.sparsity import least_density
from client_agent.rounds.mixed_ranks import has_moments_of
from client_agent.rounds.part import Part
from schemas.maths.adapter import Layout
from schemas.maths.factors import State
from schemas.messages.recipes import Recipe
from schemas.strategies.ca_pfl import CaPflOptions
from schemas.wire.budget import Marks
from schemas.wire.quantise import Floats

if TYPE_CHECKING:
    from client_agent.adapters.base import Adapter
    from client_agent.adapters.lora import LoraAdapter
    from client_agent.model.loading import BaseModel
    from client_agent.rounds.encode_update import EncodedUpdate, UpdateInputs


@dataclass(frozen=True, slots=True)
class RankImportance(Part):
    """A posterior over the importance of each rank, which selects the sent values."""

    action = "learns the importance of ranks"
    excludes = frozenset({"a trainer", "torchrun", "private steps"})
    bounds_bytes = True

    plan: CaPflOptions

    def shortfall(self, layout: Layout, recipe: Recipe) -> str | None:
        density, needed = min(self.plan.density, recipe.density), least_density(layout)
        if density >= needed:
            return None
        enough = ceil(needed * 1e6) / 1e6
        return f"density {density:g} leaves no room beside this adapter's priors: {enough:g} does"

    def wrap(self, adapter: Adapter, base: BaseModel) -> Adapter:
        from client_agent.adapters.variational.adapter import VariationalAdapter

        return VariationalAdapter(cast("LoraAdapter", adapter), base, self.plan)

    @property
    def searched_as(self) -> CaPflOptions:
        return self.plan

    def continues_optimiser(self, adapter: Adapter, stored: State) -> bool:
        # Version 0.2.0 may have stored moments of fewer ranks (docs/decisions/0087).
        return has_moments_of(adapter, stored)

    def marks(
        self, round_number: int, private: State, delta: Mapping[str, Floats]
    ) -> tuple[Callable[[float], Marks], float]:
        from client_agent.importance.rounds import marks_by_importance

        return marks_by_importance(self.plan, round_number, private, delta)

    def encoded(self, inputs: UpdateInputs, encoded: EncodedUpdate) -> None:
        from client_agent.importance.rounds import store_measures

        store_measures(inputs.folder, inputs.rounds, inputs.trained.private, encoded)
