"""A round in progress: what its steps share, opened and read once."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from client_agent.adapters.base import State
from client_agent.experts.memory import EXPERTS, ExpertMemory
from client_agent.rounds.encode_update import UpdateInputs
from client_agent.rounds.opened_brief import OpenedBrief
from client_agent.rounds.participant import Participant, Session, Trainer
from client_agent.rounds.train import TrainedRounds
from client_agent.storage.round_folder import PARTIAL, RoundFolder, RoundFolders
from client_agent.training.checkpoint import TrainingCheckpoint
from schemas.messages.rounds import RoundBrief
from schemas.messages.sum_plan import SecureSumPlan


@dataclass
class Work:
    """A round in progress; the trained adapters on disk are read once."""

    participant: Participant
    opened: OpenedBrief
    folder: RoundFolder

    @property
    def session(self) -> Session:
        return self.participant.session

    @property
    def trainer(self) -> Trainer:
        return self.participant.trainer

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
    def expert_memory(self) -> ExpertMemory:
        """The choices among experts of this client, as stored."""
        return ExpertMemory(self.session.home / EXPERTS)

    @property
    def earlier(self) -> State | None:
        trained = self.trained.before(self.brief.round)
        return trained.adapter if trained is not None else None

    @property
    def checkpoint(self) -> TrainingCheckpoint:
        origin = self.trainer.origin(self.opened)
        return TrainingCheckpoint(
            self.folder.path / PARTIAL,
            self.trainer.checkpoint_seconds,
            belongs_to=f"{self.folder.base} {origin.model_dump_json()}",
        )

    @property
    def update_inputs(self) -> UpdateInputs:
        session, trainer = self.session, self.trainer
        return UpdateInputs(
            opened=self.opened,
            folder=self.folder,
            rounds=self.rounds,
            trained=self.trained.of(self.folder),
            federation_id=session.federation_id,
            client_id=session.client_id,
            pack_digest=trainer.frames(self.brief).pack_digest,
            examples=len(trainer.silo.data.train),
        )
