"""FedAvg (McMahan et al. 2017) in the agent: every client continues from the common adapter."""

from __future__ import annotations

from dataclasses import dataclass

from client_agent.rounds.strategy import AgentStrategy


@dataclass(frozen=True, slots=True)
class Strategy(AgentStrategy):
    """The served adapter replaces the local one."""
