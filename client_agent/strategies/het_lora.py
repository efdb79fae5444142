"""HetLoRA (arXiv 2401.06432, EMNLP 2024) in the agent: every client has its own rank and prunes it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from client_agent.rounds.mixed_ranks import MixedRanks
from client_agent.rounds.part import Effect, Part
from client_agent.rounds.strategy import AgentStrategy
from schemas.strategies.lora_factors import HetLoraOptions

if TYPE_CHECKING:
    from client_agent.rounds.train import LocalTraining


@dataclass(frozen=True, slots=True)
class Pruning(Part):
    """A client reduces its rank: all ranks but the first `decay` times rank, or `least`, are penalised.

    The penalty is `strength` times their size; they are removed after a round in which they shrank.
    """

    action = "prunes ranks by a penalty of the loss"
    excludes = frozenset({"a trainer", "private steps"})

    least: int
    decay: float
    strength: float

    def target(self, rank: int) -> int:
        """Return the rank of a client of this rank after pruning."""
        return min(rank, max(self.least, int(self.decay * rank)))

    def begin(self, training: LocalTraining) -> Effect:
        from client_agent.adapters.rank_pruning import Pruner

        pruner = Pruner(training.adapter, self.target, self.strength)
        return Effect(penalty=pruner.penalty, state=pruner.pruned)


@dataclass(frozen=True, slots=True)
class Strategy(AgentStrategy):
    """The served adapter, truncated to the client's rank, replaces the local one."""

    options: HetLoraOptions

    @property
    def parts(self) -> tuple[Part, ...]:
        least, decay, strength = self.options.r_min, self.options.decay, self.options.pruning
        return MixedRanks(least), Pruning(least, decay, strength)
