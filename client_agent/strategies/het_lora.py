"""HetLoRA (arXiv 2401.06432, EMNLP 2024), in the agent: a rank of one's own, which shrinks by itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from client_agent.strategies.base import Pruning, State


class Options(BaseModel):
    """What ranks clients may have, and how they prune their own; as the coordinator has it."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    r_min: Annotated[int, Field(ge=1)] = 1
    decay: Annotated[float, Field(gt=0, lt=1)] = 0.99
    pruning: Annotated[float, Field(ge=0)] = 1e-3


@dataclass(frozen=True, slots=True)
class Strategy:
    """What is served, cut to our rank, replaces what is here."""

    options: Options

    @property
    def gated(self) -> bool:
        """No: there is one adapter."""
        return False

    @property
    def pruning(self) -> Pruning:
        """As the options say."""
        return Pruning(self.options.r_min, self.options.decay, self.options.pruning)

    def start(self, local: State | None, served: State, *, newcomer: bool) -> State:
        """L <- G."""
        return served
