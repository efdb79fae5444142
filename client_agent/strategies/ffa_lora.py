"""FFA-LoRA (arXiv 2403.12313, ICLR 2024), in the agent: B alone trains and travels, over a frozen A."""

from __future__ import annotations

from dataclasses import dataclass

from pydantic import BaseModel, ConfigDict

from client_agent.strategies.base import State
from schemas.maths.adapter import factor_of


class Options(BaseModel):
    """The agent needs none."""

    model_config = ConfigDict(extra="ignore", frozen=True)


@dataclass(frozen=True, slots=True)
class Strategy:
    """What is served replaces the B that is here."""

    options: Options

    @property
    def gated(self) -> bool:
        """No: there is one adapter."""
        return False

    def travels(self, tensor: str) -> bool:
        """Only B does: A follows from the plan's seed."""
        return factor_of(tensor) == "B"

    def trains(self, tensor: str) -> bool:
        """Only B does."""
        return factor_of(tensor) == "B"

    def start(self, local: State | None, served: State, *, newcomer: bool) -> State:
        """L <- G."""
        return served
