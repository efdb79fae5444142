"""CA-PFL, corrected, in the agent: clients learn the importance of the ranks of the common adapter.

`client_agent.adapters.variational` learns it; docs/decisions/0024 lists the differences from the paper.
"""

from __future__ import annotations

from dataclasses import dataclass

from pydantic import ConfigDict

from client_agent.strategies.base import AgentStrategy, Traits
from schemas.messages.importance import ImportancePlan


class Options(ImportancePlan):
    """All options are the agent's."""

    model_config = ConfigDict(extra="ignore", frozen=True, allow_inf_nan=False)


@dataclass(frozen=True, slots=True)
class Strategy(AgentStrategy):
    """The served adapter replaces the local one; posterior and unsent values stay."""

    options: Options

    @property
    def traits(self) -> Traits:
        return Traits(importance=self.options)
