"""FLoRA (arXiv 2409.05976, NeurIPS 2024) in the agent: a new adapter each round on an updated base model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from client_agent.base_delta import BaseDeltaForm, BaseDeltaPart
from client_agent.rounds.mixed_ranks import MixedRanks
from client_agent.rounds.part import Part
from client_agent.rounds.served_weights import ServedForm
from client_agent.rounds.strategy import AgentOptions, AgentStrategy


class Options(AgentOptions):
    """The agent needs no options."""


@dataclass(frozen=True, slots=True)
class Strategy(AgentStrategy):
    """Local A and B are discarded: their product joins the base model."""

    restarts: ClassVar[bool] = True

    options: Options

    @property
    def served(self) -> ServedForm:
        return BaseDeltaForm(mixed_ranks=True)

    @property
    def parts(self) -> tuple[Part, ...]:
        return MixedRanks(least=1), BaseDeltaPart()
