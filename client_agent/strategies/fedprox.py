"""FedProx (arXiv 1812.06127, MLSys 2020) in the agent: local steps are pulled to the served weights."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from client_agent.strategies.base import AgentOptions, AgentStrategy, Traits


class Options(AgentOptions):
    """`proximal`: the weight of the distance to the served adapter in the loss of a client's steps."""

    proximal: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.1


@dataclass(frozen=True, slots=True)
class Strategy(AgentStrategy):
    """The served adapter replaces the local one, and holds it."""

    options: Options

    @property
    def traits(self) -> Traits:
        return Traits(proximal=self.options.proximal)
