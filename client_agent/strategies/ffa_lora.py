"""FFA-LoRA (arXiv 2403.12313, ICLR 2024) in the agent: only B trains and travels, A is frozen."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from client_agent.strategies.base import AgentOptions, AgentStrategy, Traits
from schemas.maths.adapter import factor_of


class Options(AgentOptions):
    """The agent needs no options."""


@dataclass(frozen=True, slots=True)
class Strategy(AgentStrategy):
    """The served B replaces the local one; A follows from the plan's seed."""

    traits: ClassVar[Traits] = Traits(part_travels=True)

    options: Options

    def travels(self, tensor: str) -> bool:
        return factor_of(tensor) == "B"

    def trains(self, tensor: str) -> bool:
        return factor_of(tensor) == "B"
