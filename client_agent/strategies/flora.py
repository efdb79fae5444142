"""FLoRA (arXiv 2409.05976, NeurIPS 2024), in the agent: begin anew, on a base model that has learnt."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from pydantic import BaseModel, ConfigDict

from client_agent.strategies.base import State


class Options(BaseModel):
    """The agent needs none."""

    model_config = ConfigDict(extra="ignore", frozen=True)


@dataclass(frozen=True, slots=True)
class Strategy:
    """Nothing of A and B goes on: what they had learnt is in the base model."""

    restarts: ClassVar[bool] = True

    options: Options

    @property
    def gated(self) -> bool:
        """No: there is one adapter."""
        return False

    def start(self, local: State | None, served: State, *, newcomer: bool) -> State:
        """L <- G."""
        return served
