"""Fed-VEMoE in the agent: a shared expert and specialists, chosen in private by their losses."""

from __future__ import annotations

from dataclasses import dataclass

from client_agent.experts.part import BankOfExperts, ServedBank
from client_agent.rounds.part import Part
from client_agent.rounds.served_weights import ServedForm
from client_agent.rounds.strategy import AgentStrategy
from schemas.strategies.fed_vemoe import FedVemoeOptions


@dataclass(frozen=True, slots=True)
class Strategy(AgentStrategy):
    """The served bank replaces the local one; the choice and the router stay with the client."""

    options: FedVemoeOptions

    @property
    def served(self) -> ServedForm:
        return ServedBank()

    @property
    def parts(self) -> tuple[Part, ...]:
        return (BankOfExperts(self.options),)
