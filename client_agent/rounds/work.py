"""A round in progress of a client that trains: its model, its checkpoint, and the inputs of its update."""

from __future__ import annotations

from dataclasses import dataclass

from client_agent.privacy.ledger import Ledger
from client_agent.rounds.encode_update import UpdateInputs
from client_agent.rounds.opened_round import OpenedRound
from client_agent.rounds.participant import Participant, Trainer
from client_agent.storage.round_folder import PARTIAL
from client_agent.training.checkpoint import TrainingCheckpoint
from schemas.messages.private_training import PrivateTrainingPlan


@dataclass
class Work(OpenedRound):
    """A round in progress, with the model."""

    participant: Participant

    @property
    def trainer(self) -> Trainer:
        return self.participant.trainer

    @property
    def private_training(self) -> PrivateTrainingPlan | None:
        """Return the plan's budget of training; None if training is not private."""
        return self.session.manifests.plan.privacy.training

    @property
    def training_epsilon(self) -> float | None:
        """Return what the silo's private training has cost so far; None if training is not private."""
        if self.private_training is None:
            return None
        return Ledger(self.participant.workspace.folder).read().training_epsilon

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
            training_epsilon=self.training_epsilon,
        )
