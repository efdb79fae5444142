"""FedEx-LoRA (arXiv 2410.09432, ACL 2025), in the agent: go on from the means, on a base model made up."""

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
    """What is served replaces the A and B that are here."""

    restarts: ClassVar[bool] = False

    options: Options

    @property
    def gated(self) -> bool:
        """No: there is one adapter."""
        return False

    def start(self, local: State | None, served: State, *, newcomer: bool) -> State:
        """L <- G."""
        return served
