"""LoRA-FAIR (arXiv 2411.14961, ICCV 2025) in the agent: clients continue from the served adapter."""

from __future__ import annotations

from dataclasses import dataclass

from client_agent.rounds.strategy import AgentStrategy


@dataclass(frozen=True, slots=True)
class Strategy(AgentStrategy):
    """The served A and B replace the local ones."""
