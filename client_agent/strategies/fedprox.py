"""FedProx (arXiv 1812.06127, MLSys 2020) in the agent: local steps are pulled to the served weights."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from client_agent.rounds.part import Effect, Part
from client_agent.rounds.strategy import AgentStrategy
from schemas.strategies.averages import FedProxOptions

if TYPE_CHECKING:
    from client_agent.rounds.train import LocalTraining


@dataclass(frozen=True, slots=True)
class ProximalTerm(Part):
    """The loss of every step grows with the distance to the served weights."""

    action = "pulls its steps to the served weights"
    excludes = frozenset({"a trainer"})

    weight: float

    def begin(self, training: LocalTraining) -> Effect:
        from client_agent.adapters.proximal import pull_to

        return Effect(penalty=pull_to(training.adapter.state(), self.weight))


@dataclass(frozen=True, slots=True)
class Strategy(AgentStrategy):
    """The served adapter replaces the local one, and holds it."""

    options: FedProxOptions

    @property
    def parts(self) -> tuple[Part, ...]:
        return (ProximalTerm(self.options.proximal),)
