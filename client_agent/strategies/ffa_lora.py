"""FFA-LoRA (arXiv 2403.12313, ICLR 2024) in the agent: only B trains and travels, A is frozen."""

from __future__ import annotations

from dataclasses import dataclass

from client_agent.rounds.part import Part
from client_agent.rounds.sent_factors import SentFactors
from client_agent.rounds.strategy import AgentStrategy
from schemas.maths.adapter import factor_of


@dataclass(frozen=True, slots=True)
class Strategy(AgentStrategy):
    """The served B replaces the local one; A follows from the plan's seed."""

    @property
    def parts(self) -> tuple[Part, ...]:
        return (SentFactors(self.options.travels, self.trains),)

    def trains(self, tensor: str) -> bool:
        return factor_of(tensor) == "B"
