"""Fed-VEMoE in the agent: a shared expert and specialists, chosen in private by their losses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from client_agent.experts.part import BankOfExperts, ServedBank
from client_agent.experts.routing import Routing
from client_agent.rounds.part import Part
from client_agent.rounds.served_weights import ServedForm
from client_agent.rounds.strategy import AgentStrategy
from schemas.maths.bank import counted_groups, most_chosen


class Options(Routing):
    """How a client chooses among experts and trains them."""


@dataclass(frozen=True, slots=True)
class Strategy(AgentStrategy):
    """The served bank replaces the local one; the choice and the router stay with the client."""

    options: Options

    @property
    def served(self) -> ServedForm:
        return ServedBank()

    @property
    def parts(self) -> tuple[Part, ...]:
        return (BankOfExperts(self.options),)

    def counts(self, segments: Sequence[str]) -> tuple[str, ...]:
        return counted_groups(segments)

    @property
    def choices(self) -> int:
        return most_chosen(self.options.top_m)
