"""A round in progress: the client, the brief and the files that its steps share. Needs no torch."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from client_agent.rounds.client import Client, Session
from client_agent.rounds.opened_brief import OpenedBrief
from client_agent.rounds.trained import TrainedRounds
from client_agent.storage.round_folder import TRAINED, RoundFolder, RoundFolders
from schemas.maths.factors import State
from schemas.messages.rounds import RoundBrief
from schemas.messages.sum_plan import SecureSumPlan


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
    def trained(self) -> TrainedRounds:
        return TrainedRounds(self.rounds)

    @property
    def earlier(self) -> State | None:
        trained = self.trained.before(self.brief.round)
        return trained.adapter if trained is not None else None

    @property
    def carries_sketch(self) -> bool:
        """Whether the join carries this client's sketch: that of a newcomer after the first round.

        Nothing of one client leaves it in a federation that sums: a newcomer starts from the common weights.
        """
        is_newcomer = self.rounds.newest_with(TRAINED, before=self.brief.round) is None
        return is_newcomer and self.brief.round > 1 and self.sum_plan is None
