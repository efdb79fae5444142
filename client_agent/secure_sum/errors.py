"""Errors of the secure sum in the agent."""

from __future__ import annotations

from client_agent.errors import AgentError


class SumRefused(AgentError):
    """The coordinator's terms or messages of a secure sum contradict this silo's own records."""

    def __init__(self, reason: str) -> None:
        super().__init__(
            f"the secure sum is refused: {reason}. Nothing more of this silo is sent in this round. The "
            "coordinator is dishonest, or was set back to an older state; ask the operator"
        )
