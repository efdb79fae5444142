"""Differentially private training in a round: suitable methods, the noise of steps, and the ledger."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace

from client_agent.adapters.base import Adapter
from client_agent.errors import AgentError
from client_agent.model.examples import Example, probe_set
from client_agent.privacy.ledger import Ledger
from client_agent.privacy.release import Mechanism
from client_agent.privacy.training import training_mechanism
from client_agent.rounds.part import Part, obstacle
from client_agent.rounds.work import Work
from client_agent.training.batched_gradients import batched_gradients
from client_agent.training.data import without_held_out
from client_agent.training.private_steps import PrivateSteps
from client_agent.training.silo import Silo
from schemas.messages.private_training import PrivateTrainingPlan
from schemas.privacy import training_status

log = logging.getLogger(__name__)


class NotPrivatelyTrained(AgentError):
    """The plan asks for differentially private training, which this method or this silo does not support."""

    def __init__(self, obstacle: str, remedy: str) -> None:
        super().__init__(
            f"the plan asks for differentially private training (privacy.training), and {obstacle}; nothing "
            f"is trained or sent. {remedy}"
        )


@dataclass(frozen=True, slots=True)
class RoundPayments:
    """The ledger of a silo, for the steps of one round."""

    ledger: Ledger
    federation_id: str
    round_number: int
    mechanism: Mechanism
    dp: PrivateTrainingPlan

    def pay(self, steps: int) -> None:
        """Charge the ledger for steps, except for steps that are paid for and have not begun."""
        book = self.ledger.with_steps(self.federation_id, self.round_number, self.mechanism, steps, self.dp)
        # Before the first step: a crash costs budget, and never releases unpaid steps.
        self.ledger.write(book)
        log.info(
            "round %d: %d private steps with noise %.2f, %d of %d examples in each on average; %s",
            self.round_number,
            steps,
            self.mechanism.noise_multiplier,
            self.mechanism.sampled,
            self.mechanism.records,
            training_status(self.dp, book.training_epsilon, book.training_delta),
        )

    def begin_step(self) -> None:
        self.ledger.begin_step(self.federation_id, self.round_number, self.mechanism)


def private_steps(work: Work, adapter: Adapter) -> PrivateSteps | None:
    """Return how the steps of a round are made private; None if the plan asks for no such training.

    Raises:
        TooFewRecords: delta protects none of so many examples.
    """
    dp = work.private_training
    if dp is None:
        return None
    silo, plan = work.trainer.silo, work.brief.training
    examples = different(silo.data.train)
    dim = sum(parameter.numel() for parameter in adapter.named_parameters().values())
    mechanism = training_mechanism(len(examples), dim, plan, dp)
    payments = RoundPayments(
        Ledger(work.participant.workspace.folder), work.session.federation_id, work.brief.round, mechanism, dp
    )
    records = [silo.encoded([example], plan.max_length) for example in examples]
    batched = None
    if dp.gradients == "batched":
        texts = (text for record in records for text in record)
        batched = batched_gradients(silo.base, adapter.named_parameters(), texts, plan)
    return PrivateSteps(records, mechanism, payments, batched)


def leave_out_held_out(work: Work) -> None:
    """Remove held-out examples from the trainer's training set if training is private: `without_held_out`.

    Call it first: the noise depends on the number of the remaining examples.

    Raises:
        DataInvalid: no training example is left.
    """
    if work.private_training is None:
        return
    silo = work.trainer.silo
    # Losses of held-out examples leave the silo without noise, so their prompts must not be trained on.
    data = without_held_out(silo.data)
    if data is not silo.data:
        log.warning(
            "data: %d training examples have the prompt of a held-out one; private training leaves them out",
            len(silo.data.train) - len(data.train),
        )
        work.trainer.silo = replace(silo, data=data)


def require_private_steps(silo: Silo, parts: Sequence[Part]) -> None:
    """Check that a silo's training consists of gradient steps on one adapter, in one process of its own loop.

    Raises:
        NotPrivatelyTrained: it does not.
    """
    require_private_method(parts)
    require_own_loop(silo.trainer.name if silo.trainer is not None else None)
    if silo.ranks is not None:
        raise NotPrivatelyTrained(
            "its steps are not divided among processes", "Start the agent without torchrun"
        )


def require_own_loop(trainer: str | None) -> None:
    """Check that no trainer of the silo's own replaces the loop that adds the noise.

    Raises:
        NotPrivatelyTrained: one does.
    """
    if trainer is not None:
        raise NotPrivatelyTrained(f"trainer {trainer!r} adds no noise", "Remove `trainer` from silo.toml")


def require_private_method(parts: Sequence[Part]) -> None:
    """Check that nothing but gradient steps on one adapter reads the training examples.

    Raises:
        NotPrivatelyTrained: something does.
    """
    if (action := obstacle(parts, "private steps")) is not None:
        raise NotPrivatelyTrained(
            f"its method {action}, which uses training examples without noise",
            "Ask the operator for a plan with another strategy",
        )


def different(examples: Sequence[Example]) -> list[Example]:
    """Return each example once."""
    # A repeated example would count twice, and be protected half as well.
    return probe_set(examples, len(examples))
