"""LoRA-FAIR (arXiv 2411.14961, ICCV 2025), in the agent: everybody trains on from what is served."""

from __future__ import annotations

from dataclasses import dataclass

from pydantic import BaseModel, ConfigDict

from client_agent.strategies.base import State


class Options(BaseModel):
    """The agent needs none."""

    model_config = ConfigDict(extra="ignore", frozen=True)


@dataclass(frozen=True, slots=True)
class Strategy:
    """What is served replaces what is here, the first round's zeros included."""

    options: Options

    @property
    def gated(self) -> bool:
        """No: there is one adapter."""
        return False

    def start(self, local: State | None, served: State, *, newcomer: bool) -> State:
        """L <- G."""
        return served
