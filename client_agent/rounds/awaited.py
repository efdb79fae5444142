"""The work for which `tessera agent sync` waits for `tessera agent work`, and the reverse. No torch."""

from __future__ import annotations

from client_agent.errors import AgentError


class SyncAwaited(AgentError):
    """A step on a machine without a network needs an answer of the coordinator."""

    def __init__(self, method: str, path: str) -> None:
        super().__init__(
            f"{method} {path} needs the coordinator: run `tessera agent sync` where there is a network"
        )


class WorkAwaited(AgentError):
    """A round needs work with the model first; `task` names the missing result."""

    def __init__(self, task: str) -> None:
        super().__init__(f"{task}: run `tessera agent work` where the model is")


class SumNeedsAnswers(AgentError):
    """A federation sums updates, and its members must answer within minutes."""

    def __init__(self, phase_seconds: int) -> None:
        super().__init__(
            "this federation sums updates: from the moment that this client is ready, it must answer each "
            f"step of the sum within {phase_seconds} s. Run `tessera agent sync --wait SECONDS` or "
            "`--until-work`, which stays until the sum is over, or `tessera agent run` where there are both "
            "a network and the model"
        )
