"""The pull to the bare base model in a round, as the plan's `training.anchor_pull` asks for it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from client_agent.errors import AgentError
from client_agent.rounds.part import Effect, Part
from client_agent.rounds.public_texts import federation_texts
from schemas.messages.alignment import Anchor

if TYPE_CHECKING:
    from client_agent.rounds.train import LocalTraining


class NoAnchors(AgentError):
    """A plan with `training.anchor_pull` has no public texts to pull on."""

    def __init__(self) -> None:
        super().__init__(
            "training.anchor_pull compares the model with its base model on public anchor texts, and there "
            "are none; pass them with --anchors, ask the operator for a federation with texts, or set it to 0"
        )


@dataclass(frozen=True, slots=True)
class AnchorPull(Part):
    """Every step is pulled to the outputs of the bare base model on a few public texts.

    It reads no training example, so it is no obstacle to private steps: a pull is computed from public texts
    and from weights that were released with noise.

    Attributes:
        texts: those of a training without a federation.
    """

    action = "pulls its steps to the bare base model"
    excludes = frozenset({"a trainer"})
    reads_anchors = True

    weight: float
    texts: tuple[Anchor, ...] = ()

    def begin(self, training: LocalTraining) -> Effect:
        """Add the pull to the loss of each step.

        Raises:
            NoAnchors: there are no public texts.
        """
        from client_agent.anchor_pull.pull import pull_to_bare

        texts = self.texts if training.work is None else federation_texts(training.work.session)
        if not texts:
            raise NoAnchors
        return Effect(penalty=pull_to_bare(training.silo.base, texts, self.weight, training.plan))
