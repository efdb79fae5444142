"""FedMosaic (arXiv 2506.11024) in the agent: the personalised global adapter G meets the local L.

docs/explanation/strategies.md describes how the received weights are used.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from client_agent.distillation.part import Distillation
from client_agent.rounds.part import Part
from client_agent.rounds.served_weights import ServedForm, StoredWeights
from client_agent.rounds.strategy import AgentStrategy
from client_agent.storage.round_folder import WEIGHTS, RoundFolder
from schemas.maths.factors import State
from schemas.strategies.fedmosaic import FedMosaicOptions
from schemas.wire.digests import digest_of

if TYPE_CHECKING:
    from client_agent.adapters.base import Adapter


@dataclass(frozen=True, slots=True)
class GlobalBranch(ServedForm):
    """The weights are a frozen branch beside the adapter."""

    def load_beside(self, adapter: Adapter, served: StoredWeights) -> None:
        adapter.load_global(self.read(served.body, adapter.layout))

    def surroundings(self, folder: RoundFolder) -> str:
        return digest_of(folder.read(WEIGHTS))


@dataclass(frozen=True, slots=True)
class Strategy(AgentStrategy):
    """A client starts from the served adapter if it is not worse than its own; with a gate, from its own."""

    options: FedMosaicOptions

    @property
    def served(self) -> ServedForm:
        return GlobalBranch() if self.options.gated else ServedForm()

    @property
    def parts(self) -> tuple[Part, ...]:
        return (Distillation(self.options.distil),) if self.options.distil is not None else ()

    @property
    def declines(self) -> bool:
        return self.options.start_from == "better" and not self.options.gated

    def start(self, local: State | None, served: State, *, newcomer: bool) -> State:
        """L <- G with `replace` and for a newcomer; else L."""
        return served if newcomer or local is None or not self.options.gated else local
