"""HetLoRA (arXiv 2401.06432, EMNLP 2024) in the agent: every client has its own rank and prunes it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from client_agent.strategies.base import AgentOptions, AgentStrategy, Pruning, Traits


class Options(AgentOptions):
    """The least rank and the pruning rule, as in the coordinator's options."""

    r_min: Annotated[int, Field(ge=1)] = 1
    decay: Annotated[float, Field(gt=0, lt=1)] = 0.99
    pruning: Annotated[float, Field(ge=0)] = 1e-3


@dataclass(frozen=True, slots=True)
class Strategy(AgentStrategy):
    """The served adapter, truncated to the client's rank, replaces the local one."""

    options: Options

    @property
    def traits(self) -> Traits:
        least = self.options.r_min
        return Traits(least_rank=least, pruning=Pruning(least, self.options.decay, self.options.pruning))
