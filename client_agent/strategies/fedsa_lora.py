"""FedSA-LoRA (arXiv 2410.01463, ICLR 2025) in the agent: A is shared, B stays in the silo."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from client_agent.strategies.base import AgentOptions, AgentStrategy, Traits
from schemas.maths.adapter import factor_of


class Options(AgentOptions):
    """The agent needs no options."""


@dataclass(frozen=True, slots=True)
class Strategy(AgentStrategy):
    """The served A replaces the local one; a newcomer starts with B = 0."""

    traits: ClassVar[Traits] = Traits(part_travels=True)

    options: Options

    def travels(self, tensor: str) -> bool:
        return factor_of(tensor) == "A"
