"""FedMosaic (arXiv 2506.11024) in the agent: the personalised global adapter G meets the local L.

fedmosaic.md section 3, "Beside P and Q, and how the received weights are used".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from client_agent.strategies.base import AgentOptions, AgentStrategy, State, Traits
from schemas.messages.distil import DistilPlan


class Options(AgentOptions):
    """How clients use what they are served.

    Attributes:
        mix: continue from G (`replace`), or train L beside G (`gate`).
        distil: learn from the outputs of peers' models as well; None = do not.
    """

    mix: Literal["replace", "gate"] = "replace"
    distil: DistilPlan | None = None


@dataclass(frozen=True, slots=True)
class Strategy(AgentStrategy):
    """A client starts from the served adapter, or, with a gate, from its own once it has one."""

    options: Options

    @property
    def traits(self) -> Traits:
        return Traits(gated=self.options.mix == "gate", distil=self.options.distil)

    def start(self, local: State | None, served: State, *, newcomer: bool) -> State:
        """L <- G with `replace` and for a newcomer; else L."""
        if newcomer or local is None or self.options.mix == "replace":
            return served
        return local
