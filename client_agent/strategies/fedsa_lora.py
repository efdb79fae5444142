"""FedSA-LoRA (arXiv 2410.01463, ICLR 2025), in the agent: A is everybody's, B stays here."""

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
    """What is served replaces the A that is here; a newcomer begins with B = 0."""

    options: Options

    @property
    def gated(self) -> bool:
        """No: there is one adapter."""
        return False

    def travels(self, tensor: str) -> bool:
        """Only A does."""
        return factor_of(tensor) == "A"

    def trains(self, tensor: str) -> bool:
        """All do."""
        return True

    def start(self, local: State | None, served: State, *, newcomer: bool) -> State:
        """L <- G."""
        return served
