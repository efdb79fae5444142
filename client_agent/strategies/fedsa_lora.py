"""FedSA-LoRA (arXiv 2410.01463, ICLR 2025) in the agent: A is shared, B stays in the silo."""

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
    """The served A replaces the local one; a newcomer starts with B = 0."""

    options: Options

    @property
    def parts(self) -> tuple[Part, ...]:
        return (SentFactors(self.travels, self.trains),)

    def travels(self, tensor: str) -> bool:
        return factor_of(tensor) == "A"
