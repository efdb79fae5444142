"""Losses of the experts on the probe set, by which a client chooses among them."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import MutableMapping, Sequence
from dataclasses import replace
from math import inf

from client_agent.adapters.expert_bank import ExpertBank
from client_agent.errors import LossNotFinite
from client_agent.experts.responsibilities import ProbeLosses
from client_agent.model.examples import Example, encode_some
from client_agent.model.forward import evaluating
from client_agent.model.loading import BaseModel
from client_agent.model.quantization import precision_of
from client_agent.model.tokens import TokenizedText, digest_of_texts
from client_agent.training.data import with_probe
from client_agent.training.evaluate import mean_loss
from client_agent.training.silo import Silo
from schemas.maths.bank import SHARED, expert_tensors
from schemas.secure_sum.segments import values_digest
from schemas.strategies.fed_vemoe import FedVemoeOptions

log = logging.getLogger(__name__)


class Prober:
    """Scores every candidate on the same texts, without dropout, and each pair of revisions once.

    Args:
        losses: the losses by the digests of both revisions and of all else that they depend on.

    Attributes:
        digest: of the texts, the base model and its precision, on which all losses depend.
    """

    def __init__(
        self, base: BaseModel, texts: Sequence[TokenizedText], losses: MutableMapping[str, float]
    ) -> None:
        self._base = base
        self._texts = texts
        self._losses = losses
        facts = [base.slug, precision_of(base.model), digest_of_texts(texts)]
        self.digest = hashlib.sha256("\n".join(facts).encode()).hexdigest()

    def losses(self, adapter: ExpertBank) -> ProbeLosses:
        """Compute the losses of the shared expert alone and beside each specialist; the selection stays.

        Raises:
            LossNotFinite: the shared expert's loss is NaN or infinite.
        """
        selected, weights = adapter.specialists, adapter.specialist_weights
        state = adapter.state()
        digests = {
            expert: values_digest(expert_tensors(expert, state), adapter.expert_layout)
            for expert in adapter.experts
        }
        try:
            with evaluating(self._base.model):
                shared = self._loss(adapter, (), [digests[SHARED]])
                specialists = {
                    expert: self._loss_or_infinite(adapter, expert, [digests[SHARED], digests[expert]])
                    for expert in adapter.experts
                    if expert != SHARED
                }
        finally:
            # Also after an error, since the caller trains with this bank.
            adapter.select(selected, weights)
        return ProbeLosses(shared, specialists)

    def loss(self) -> float:
        """Compute the loss of the model as it is, which is not stored.

        Raises:
            LossNotFinite: it is NaN or infinite.
        """
        with evaluating(self._base.model):
            return mean_loss(self._base, self._texts)

    def _loss_or_infinite(self, adapter: ExpertBank, expert: int, digests: Sequence[str]) -> float:
        try:
            return self._loss(adapter, (expert,), digests)
        except LossNotFinite:
            log.warning("experts: the loss of expert %d is not finite; it is not chosen", expert)
            # A specialist that diverged at a peer must not end this client's round.
            return inf

    def _loss(self, adapter: ExpertBank, specialists: Sequence[int], digests: Sequence[str]) -> float:
        key = hashlib.sha256("\n".join([self.digest, *digests]).encode()).hexdigest()
        if key not in self._losses:
            adapter.select(specialists)
            self._losses[key] = mean_loss(self._base, self._texts)
        return self._losses[key]


def with_probe_set(silo: Silo, routing: FedVemoeOptions) -> Silo:
    """Return a silo whose probe set is held out of training, if it has examples enough for one."""
    return replace(silo, data=with_probe(silo.data, routing.probe_examples))


def prober_of(
    silo: Silo, routing: FedVemoeOptions, max_length: int, losses: MutableMapping[str, float]
) -> Prober | None:
    """Return the scorer of experts on a silo's probe set; None if the silo is too small for one.

    Args:
        losses: those that were computed before, by digests.
    """
    if not silo.data.probe:
        log.warning(
            "experts: %d training examples are too few for a probe set; they are chosen by chance",
            len(silo.data.train),
        )
        return None
    texts = probe_texts(silo.base, silo.data.probe, routing.probe_examples, max_length)
    return Prober(silo.base, texts, losses)


def probe_texts(
    base: BaseModel, probe: Sequence[Example], most: int, max_length: int
) -> tuple[TokenizedText, ...]:
    """Tokenise the probe set: at most `most` texts, in order of digest, so that they are the same each time.

    Raises:
        TextTooLong: a text exceeds the base model's context.
    """
    # Order by digest: by position, a file with a new first line would change the whole probe set.
    return encode_some(base, sorted(probe, key=lambda example: example.key), most, max_length)
