"""CA-PFL, corrected, in the agent: train on from the common adapter, and learn which of its ranks matter.

How they are learnt and what is sent by them is `client_agent.adapters.variational`; what differs from the
published method is told in docs/decisions/0024.
"""

from __future__ import annotations

from dataclasses import dataclass

from pydantic import ConfigDict

from client_agent.strategies.base import State
from schemas.messages.importance import ImportancePlan


class Options(ImportancePlan):
    """All of them are the agent's."""

    model_config = ConfigDict(extra="ignore", frozen=True, allow_inf_nan=False)


@dataclass(frozen=True, slots=True)
class Strategy:
    """What is served replaces what is here; the posterior, the modulator and what was not sent stay."""

    options: Options

    @property
    def gated(self) -> bool:
        """No: there is one adapter."""
        return False

    @property
    def importance(self) -> ImportancePlan:
        """How importance is learnt, and what is sent by it."""
        return self.options

    def start(self, local: State | None, served: State, *, newcomer: bool) -> State:
        """L <- G."""
        return served
