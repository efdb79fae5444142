"""CA-PFL, corrected, in the agent: clients learn the importance of the ranks of the common adapter.

`client_agent.adapters.variational` learns it; docs/decisions/0024 lists the differences from the paper.
"""

from __future__ import annotations

from dataclasses import dataclass

from client_agent.importance.part import RankImportance
from client_agent.rounds.part import Part
from client_agent.rounds.strategy import AgentStrategy
from schemas.strategies.ca_pfl import CaPflOptions


@dataclass(frozen=True, slots=True)
class Strategy(AgentStrategy):
    """The served adapter replaces the local one; posterior and unsent values stay."""

    options: CaPflOptions

    @property
    def parts(self) -> tuple[Part, ...]:
        return (RankImportance(self.options),)
