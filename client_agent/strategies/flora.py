"""FLoRA (arXiv 2409.05976, NeurIPS 2024) in the agent: a new adapter each round on an updated base model."""

from __future__ import annotations

from dataclasses import dataclass

from client_agent.base_delta import BaseDeltaForm, BaseDeltaPart
from client_agent.rounds.mixed_ranks import MixedRanks
from client_agent.rounds.part import Part
from client_agent.rounds.served_weights import ServedForm
from client_agent.rounds.strategy import AgentStrategy


@dataclass(frozen=True, slots=True)
class Strategy(AgentStrategy):
    """Local A and B are discarded: their product joins the base model."""

    @property
    def served(self) -> ServedForm:
        return BaseDeltaForm(mixed_ranks=self.options.mixed_ranks)

    @property
    def parts(self) -> tuple[Part, ...]:
        return MixedRanks(least=1), BaseDeltaPart()
