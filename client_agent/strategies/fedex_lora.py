"""FedEx-LoRA (arXiv 2410.09432, ACL 2025) in the agent: mean factors on an updated base model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from client_agent.strategies.base import AgentOptions, AgentStrategy, Traits


class Options(AgentOptions):
    """The agent needs no options."""


@dataclass(frozen=True, slots=True)
class Strategy(AgentStrategy):
    """The served A and B replace the local ones; the residual joins the base model."""

    traits: ClassVar[Traits] = Traits(base_delta=True)

    options: Options
