"""The agent's half: a client continues from the mixture that it is served."""

from __future__ import annotations

from dataclasses import dataclass

from client_agent.rounds.strategy import AgentStrategy


@dataclass(frozen=True, slots=True)
class Strategy(AgentStrategy):
    """The served adapter replaces the local one."""
