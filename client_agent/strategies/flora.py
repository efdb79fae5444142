"""FLoRA (arXiv 2409.05976, NeurIPS 2024) in the agent: a new adapter each round on an updated base model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from client_agent.strategies.base import AgentOptions, AgentStrategy, Traits


class Options(AgentOptions):
    """The agent needs no options."""


@dataclass(frozen=True, slots=True)
class Strategy(AgentStrategy):
    """Local A and B are discarded: their product joins the base model."""

    traits: ClassVar[Traits] = Traits(base_delta=True, restarts=True, least_rank=1)

    options: Options
