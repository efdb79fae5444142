"""FFA-LoRA (arXiv 2403.12313, ICLR 2024) in the agent: only B trains and travels, A is frozen."""

from __future__ import annotations

from dataclasses import dataclass

from client_agent.rounds.part import Part
from client_agent.rounds.sent_factors import SentFactors
from client_agent.rounds.strategy import AgentOptions, AgentStrategy
from schemas.maths.adapter import factor_of


class Options(AgentOptions):
    """The agent needs no options."""


@dataclass(frozen=True, slots=True)
class Strategy(AgentStrategy):
    """The served B replaces the local one; A follows from the plan's seed."""

    options: Options

    @property
    def parts(self) -> tuple[Part, ...]:
        return (SentFactors(self.travels, self.trains),)

    def travels(self, tensor: str) -> bool:
        return factor_of(tensor) == "B"

    def trains(self, tensor: str) -> bool:
        return factor_of(tensor) == "B"
