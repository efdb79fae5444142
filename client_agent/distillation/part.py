"""Distillation in a round: peers' outputs come with the weights, and the client's own go with its update."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

import httpx
import safetensors.numpy

from client_agent.errors import AgentError, CoordinatorRefused
from client_agent.rounds.client import Session
from client_agent.rounds.download import is_proved
from client_agent.rounds.part import Effect, Part
from client_agent.rounds.public_texts import federation_texts
from client_agent.storage.round_folder import MIXTURE, OUTPUTS, RoundFolder
from schemas.messages.alignment import Anchor
from schemas.strategies.fedmosaic import DistilPlan
from schemas.wire.envelope import Array, unpack
from schemas.wire.errors import BodyRefused
from schemas.wire.outputs import MOST_ROWS, ROW_BYTES, Outputs, rows_of, slots

if TYPE_CHECKING:
    from client_agent.rounds.opened_round import OpenedRound
    from client_agent.rounds.train import LocalTraining

log = logging.getLogger(__name__)

_MOST_BYTES = MOST_ROWS * ROW_BYTES + 2**20


@dataclass(frozen=True, slots=True)
class Distillation(Part):
    """Clients compare their models' outputs on the federation's first anchor texts."""

    action = "learns from the outputs of peers' models"
    excludes = frozenset({"a trainer", "private steps"})
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
            # Rows are the characters of the answers; another number of them means other anchors.
            penalty=pull_to_peers(public, mixture, self.plan.factor) if mixture and is_comparable else None,
            finished=lambda: folder.write(OUTPUTS, safetensors.numpy.save(public.outputs().tensors)),
        )

    def update_tensors(self, folder: RoundFolder) -> dict[str, Array]:
        return sent_outputs(folder)


class AnchorsTooFew(AgentError):
    """The federation has fewer public texts than its plan needs to compare outputs, or longer ones."""


def store_mixture(session: Session, folder: RoundFolder) -> None:
    """Download the mixture of the peers' outputs beside a round's weights, if there is one.

    Without it the client trains as without the option.
    """
    try:
        body = session.api.weights(session.federation_id, folder.number, form="outputs=peers")
    except CoordinatorRefused as refusal:
        # Not found is usual: no peer of this client has sent outputs yet.
        if refusal.status != httpx.codes.NOT_FOUND:
            raise
        # A mixture of an interrupted attempt may belong to other weights.
        folder.forget(MIXTURE)
        return
    if not is_proved(session, folder.number, body, folder.base):
        # The mixture only helps, so a bad one does not end the round.
        log.warning("round %d: outputs of peers without a valid signature; not used", folder.number)
        return
    try:
        with unpack(body.body, encoding="zstd", expected=slots(), max_bytes=_MOST_BYTES) as envelope:
            Outputs.read(envelope)
    except BodyRefused as error:
        log.warning("round %d: outputs of peers are malformed (%s); not used", folder.number, error)
        return
    folder.write(MIXTURE, body.body)


def read_mixture(folder: RoundFolder) -> Outputs | None:
    """Return the mixture of the peers' outputs that a round began with, if it has one."""
    if not folder.has(MIXTURE):
        return None
    with unpack(folder.read(MIXTURE), encoding="zstd", expected=slots(), max_bytes=_MOST_BYTES) as envelope:
        return Outputs.read(envelope)


def sent_outputs(folder: RoundFolder) -> dict[str, Array]:
    """Return the tensors of this client's outputs in a round; {} if it has none."""
    if not folder.has(OUTPUTS):
        return {}
    with unpack(folder.read(OUTPUTS), encoding=None, expected=slots(), max_bytes=_MOST_BYTES) as envelope:
        outputs = Outputs.read(envelope)
    return outputs.tensors if outputs is not None else {}


def public_texts(session: Session, count: int) -> list[Anchor]:
    """Return the federation's first anchor texts, on which outputs are compared.

    Raises:
        AnchorsTooFew: there are fewer, or their answers are too long together.
    """
    anchors = federation_texts(session)[:count]
    rows = rows_of(anchor.answer for anchor in anchors)
    if len(anchors) < count or rows > MOST_ROWS:
        raise AnchorsTooFew(
            f"the plan compares outputs on {count} anchor texts with at most {MOST_ROWS} characters of "
            f"answers, and there are {len(anchors)} with {rows}; ask the operator for a new federation"
        )
    return anchors
