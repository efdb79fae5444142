"""A round's brief with its strategy: the only place of the agent that loads a strategy by name."""

from __future__ import annotations

from dataclasses import dataclass

from client_agent.rounds.part import Part
from client_agent.rounds.strategy import AgentStrategy, load_strategy
from client_agent.storage.round_files import read_brief
from client_agent.storage.round_folder import RoundFolder
from schemas.maths.start import restart_seed
from schemas.messages.recipes import Recipe
from schemas.messages.rounds import RoundBrief


@dataclass(frozen=True, slots=True)
class OpenedBrief:
    """The brief of a round and its strategy, opened once per round or command."""

    brief: RoundBrief
    strategy: AgentStrategy

    @classmethod
    def of(cls, brief: RoundBrief) -> OpenedBrief:
        """Load the strategy of a brief.

        Raises:
            UnknownStrategy, StrategyOptionsInvalid: this agent is older than the plan.
        """
        return cls(brief, load_strategy(brief.strategy.name, brief.strategy.options))

    @classmethod
    def read(cls, folder: RoundFolder) -> OpenedBrief:
        """Read the brief of a round's folder, and load its strategy.

        Raises:
            RoundUnreadable: the brief is damaged, or of another version.
            UnknownStrategy, StrategyOptionsInvalid: this agent is older than the plan.
        """
        return cls.of(read_brief(folder))

    @property
    def parts(self) -> tuple[Part, ...]:
        return self.strategy.parts

    @property
    def recipe(self) -> Recipe:
        return self.brief.wire.recipe

    @property
    def start_seed(self) -> int:
        """The seed of the first A: the plan's, or the round's own if every round restarts."""
        seed = self.brief.training.seed
        if self.strategy.restarts:
            return restart_seed(seed, self.brief.round)
        return seed
