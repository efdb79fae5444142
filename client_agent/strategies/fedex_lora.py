"""FedEx-LoRA (arXiv 2410.09432, ACL 2025) in the agent: mean factors on an updated base model."""

from __future__ import annotations

from dataclasses import dataclass

from client_agent.base_delta import BaseDeltaForm, BaseDeltaPart
from client_agent.rounds.part import Part
from client_agent.rounds.served_weights import ServedForm
from client_agent.rounds.strategy import AgentStrategy


@dataclass(frozen=True, slots=True)
class Strategy(AgentStrategy):
    """The served A and B replace the local ones; the residual joins the base model."""

    @property
    def served(self) -> ServedForm:
        return BaseDeltaForm()

    @property
    def parts(self) -> tuple[Part, ...]:
        return (BaseDeltaPart(),)
