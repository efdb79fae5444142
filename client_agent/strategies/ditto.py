"""Ditto (arXiv 2012.04221) in the agent: a common adapter is trained and sent, and one of the client's own.

Each takes all steps of a round, so that a round takes twice the time (`client_agent.rounds.local_steps`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from client_agent.strategies.base import AgentOptions, AgentStrategy, Traits


class Options(AgentOptions):
    """`pull`: the weight of the distance to the served adapter in the loss of the client's own."""

    pull: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.1


@dataclass(frozen=True, slots=True)
class Strategy(AgentStrategy):
    """The served adapter replaces the common one; the client's own continues from its last value."""

    options: Options

    @property
    def traits(self) -> Traits:
        return Traits(pull=self.options.pull)
