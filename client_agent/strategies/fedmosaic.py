"""FedMosaic (arXiv 2506.11024) in the agent: the personalised global adapter G meets the local L.

fedmosaic.md section 3, "Beside P and Q, and how the received weights are used".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from client_agent.errors import LayoutMismatch
from client_agent.strategies.base import AgentOptions, AgentStrategy, State, Traits
from schemas.messages.distil import DistilPlan


class Options(AgentOptions):
    """How clients use what they are served.

    Attributes:
        mix: continue from L (`init`), mean of L and G (`average`), G (`replace`), L beside G (`gate`).
        distil: learn from the outputs of peers' models as well; None = do not.
    """

    mix: Literal["init", "average", "replace", "gate"] = "replace"
    distil: DistilPlan | None = None


@dataclass(frozen=True, slots=True)
class Strategy(AgentStrategy):
    """A newcomer starts from the served adapter; an established client as `mix` says."""

    options: Options

    @property
    def traits(self) -> Traits:
        return Traits(gated=self.options.mix == "gate", distil=self.options.distil)

    def start(self, local: State | None, served: State, *, newcomer: bool) -> State:
        """L <- G for a newcomer and with `replace`; L <- (L + G) / 2 with `average`; else L.

        Raises:
            LayoutMismatch: L and G do not have the same tensors.
        """
        if newcomer or local is None or self.options.mix == "replace":
            return served
        if self.options.mix != "average":
            return local
        if local.keys() != served.keys():
            raise LayoutMismatch(
                "the local adapter and the served one have different tensors; check whether the alignment "
                "pack changed, and remove the local adapter to start from the served one"
            )
        return {name: (local[name] + served[name]) * np.float32(0.5) for name in local}
