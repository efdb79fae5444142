"""FedSA-LoRA (arXiv 2410.01463, ICLR 2025) in the agent: A is shared, B stays in the silo."""

from __future__ import annotations

from dataclasses import dataclass

from client_agent.rounds.part import Part
from client_agent.rounds.sent_factors import SentFactors
from client_agent.rounds.strategy import AgentStrategy


@dataclass(frozen=True, slots=True)
class Strategy(AgentStrategy):
    """The served A replaces the local one; a newcomer starts with B = 0."""

    @property
    def parts(self) -> tuple[Part, ...]:
        return (SentFactors(self.options.travels, self.trains),)
