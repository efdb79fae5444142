"""Results of agents' rounds, as they are stored."""

from __future__ import annotations

from client_agent.rounds.training_result import TrainingResult
from tests.scene.agent_processes import AgentProcess


def trained(agent: AgentProcess, number: int) -> TrainingResult:
    """Return what an agent trained in a round."""
    return TrainingResult.from_bytes(agent.read(number, "trained.safetensors"))
