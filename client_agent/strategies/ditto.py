"""Ditto (arXiv 2012.04221) in the agent: a common adapter is trained and sent, and one of the client's own.

Each takes all steps of a round, so that a round takes twice the time.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, cast

from client_agent.rounds.part import Part
from client_agent.rounds.strategy import AgentStrategy
from schemas.strategies.averages import DittoOptions

if TYPE_CHECKING:
    from client_agent.adapters.base import Adapter
    from client_agent.adapters.personal_lora import PersonalLora
    from client_agent.model.loading import BaseModel
    from client_agent.rounds.local_steps import RoundSteps
    from client_agent.training.loop import TrainingOutcome

_COMMON = "common."


@dataclass(frozen=True, slots=True)
class PersonalAdapter(Part):
    """A second adapter beside the common one, pulled towards it by a weight."""

    action = "trains two adapters"
    excludes = frozenset({"a trainer", "torchrun", "private steps"})
    trained_adapters = 2

    pull: float

    def wrap(self, adapter: Adapter, base: BaseModel) -> Adapter:
        from client_agent.adapters.personal_lora import PersonalLora

        return PersonalLora(adapter, self.pull)

    def run(self, steps: RoundSteps) -> TrainingOutcome:
        """Train first the common adapter, and then the client's own, pulled to the common one of before."""
        from client_agent.rounds.train import total_penalty

        adapter = cast("PersonalLora", steps.adapter)
        # As it is before the common adapter is trained.
        pull = adapter.pull_to_common()
        state = steps.optimiser_state or {}
        common_state = {n.removeprefix(_COMMON): v for n, v in state.items() if n.startswith(_COMMON)}
        personal_state = {n: values for n, values in state.items() if not n.startswith(_COMMON)}
        first, second = steps.local.half(0), steps.local.half(1)
        with adapter.common_in_model():
            common = steps.run(
                first,
                f"{first.title}, common adapter",
                optimiser_state=common_state,
                penalty=steps.penalty,
                beside="common",
            )
        both = total_penalty([steps.penalty, pull])
        outcome = steps.run(second, second.title, optimiser_state=personal_state, penalty=both)
        renamed = {f"{_COMMON}{name}": values for name, values in common.optimiser_state.items()}
        return replace(outcome, optimiser_state={**outcome.optimiser_state, **renamed})


@dataclass(frozen=True, slots=True)
class Strategy(AgentStrategy):
    """The served adapter replaces the common one; the client's own continues from its last value."""

    options: DittoOptions

    @property
    def parts(self) -> tuple[Part, ...]:
        return (PersonalAdapter(self.options.pull),)
