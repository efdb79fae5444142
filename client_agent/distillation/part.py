"""Distillation in a round: peers' outputs come with the weights, and the client's own go with its update."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import safetensors.numpy

from client_agent.distillation.outputs import public_texts, read_mixture, sent_outputs, store_mixture
from client_agent.rounds.part import Effect, Part
from client_agent.storage.round_folder import OUTPUTS, RoundFolder
from schemas.messages.distil import DistilPlan
from schemas.wire.envelope import Array
from schemas.wire.outputs import ROW_BYTES, rows_of

if TYPE_CHECKING:
    from client_agent.rounds.opened_round import OpenedRound
    from client_agent.rounds.train import LocalTraining


@dataclass(frozen=True, slots=True)
class Distillation(Part):
    """Clients compare their models' outputs on the federation's first anchor texts."""

    deed = "learns from the outputs of peers' models"
    excludes = frozenset({"a trainer", "a PEFT trainer", "private steps"})
    sends = "outputs"
    reads_anchors = True

    plan: DistilPlan

    def bytes_beside(self, work: OpenedRound) -> int:
        return ROW_BYTES * rows_of(text.answer for text in public_texts(work.session, self.plan.texts))

    def download(self, work: OpenedRound) -> None:
        store_mixture(work.session, work.folder)

    def begin(self, training: LocalTraining) -> Effect:
        """Pull the model to its peers' outputs, if the round has any, and store its own after training."""
        from client_agent.distillation.pull import pull_to_peers
        from client_agent.model.next_bytes import NextBytes

        work = training.work
        if work is None:
            return Effect()
        folder, texts = work.folder, public_texts(work.session, self.plan.texts)
        public = NextBytes(training.silo.base, texts, training.plan.max_length)
        mixture = read_mixture(folder)
        is_comparable = mixture is not None and len(mixture.bytes) == public.rows
        return Effect(
            penalty=pull_to_peers(public, mixture, self.plan.factor) if mixture and is_comparable else None,
            finished=lambda: folder.write(OUTPUTS, safetensors.numpy.save(public.outputs().tensors)),
        )

    def update_tensors(self, folder: RoundFolder) -> dict[str, Array]:
        return sent_outputs(folder)
