"""A round in progress: its brief with the strategy and the layout, the client, and its files.

The only place of the agent that loads the strategy of a round by name. Needs no torch.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from functools import cached_property

from client_agent.rounds.client import Client, Session
from client_agent.rounds.part import Part
from client_agent.rounds.planned_parts import with_planned
from client_agent.rounds.strategy import AgentStrategy, load_strategy
from client_agent.rounds.training_result import TrainingResults
from client_agent.storage.round_folder import TRAINED, RoundFolder, RoundFolders, read_brief
from schemas.maths.adapter import Layout
from schemas.maths.factors import State
from schemas.maths.layout import client_layout
from schemas.maths.start import restart_seed
from schemas.messages.enrolment import Profile
from schemas.messages.federations import AdapterPlan
from schemas.messages.recipes import Recipe
from schemas.messages.rounds import RoundBrief
from schemas.messages.sum_plan import SecureSumPlan


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
        return with_planned(self.strategy.parts, self.brief.training)

    @property
    def recipe(self) -> Recipe:
        return self.brief.wire.recipe

    @property
    def start_seed(self) -> int:
        """The seed of the first A: the plan's, or the round's own if every round restarts."""
        seed = self.brief.training.seed
        if self.strategy.options.restarts:
            return restart_seed(seed, self.brief.round)
        return seed


def adapter_plan(opened: OpenedBrief, state: State | None, lora_rank: int | None) -> AdapterPlan:
    """Return the adapter of a client; `state` is its last one, `lora_rank` the silo's first rank, if any."""
    plan = opened.brief.adapter
    for part in opened.parts:
        plan = part.adapter_plan(plan, state, lora_rank)
    return plan


def sent_layout(
    opened: OpenedBrief,
    profile: Profile,
    framed: Collection[str] | None,
    state: State | None,
    lora_rank: int | None,
) -> Layout:
    """Return the layout of what a client sends in a round.

    Args:
        framed: the (block, role)s that have frames; None = every one of the plan, or adapters without frames.
        state: the last trained adapter; None before the first round.
    """
    return client_layout(
        adapter_plan(opened, state, lora_rank),
        profile,
        framed,
        travels=opened.strategy.options.travels,
        beside=opened.strategy.options.beside,
    )


@dataclass
class OpenedRound:
    """A round in progress; the trained adapters on disk are read once."""

    participant: Client
    opened: OpenedBrief
    folder: RoundFolder

    @property
    def session(self) -> Session:
        return self.participant.session

    @property
    def brief(self) -> RoundBrief:
        return self.opened.brief

    @property
    def rounds(self) -> RoundFolders:
        return self.participant.workspace.rounds

    @cached_property
    def sum_plan(self) -> SecureSumPlan | None:
        """The plan of the federation's sums; None if every client sends its own update."""
        return self.session.manifests.plan.privacy.secure_sum

    @property
    def scores_are_summed(self) -> bool:
        return self.sum_plan is not None and self.sum_plan.scores == "summed"

    @cached_property
    def trained(self) -> TrainingResults:
        return TrainingResults(self.rounds)

    @property
    def earlier(self) -> State | None:
        trained = self.trained.before(self.brief.round)
        return trained.adapter if trained is not None else None

    @property
    def carries_sketch(self) -> bool:
        """Whether the join carries this client's sketch: that of a newcomer after the first round.

        Nothing of one client leaves it in a federation that sums: a newcomer starts from the common weights.
        """
        # In the first round nobody has relevance yet. In a sum no tensor of a single client may leave it.
        is_newcomer = self.rounds.newest_with(TRAINED, before=self.brief.round) is None
        return is_newcomer and self.brief.round > 1 and self.sum_plan is None
