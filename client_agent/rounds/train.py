"""Local training of one round: score, train, score, keep the better."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypedDict

import numpy as np
import torch
from numpy.typing import NDArray

from client_agent.adapters.base import Adapter, Penalty, State
from client_agent.adapters.provenance import Origin
from client_agent.rounds.examine import Exam, Examiner
from client_agent.rounds.local_steps import LocalSteps, Report, RoundSteps, run_steps
from client_agent.rounds.opened_round import OpenedRound
from client_agent.rounds.part import Part
from client_agent.rounds.training_result import Arrays, Side, TrainingResult
from client_agent.storage.final_scores import TaskScores
from client_agent.training.checkpoint import TrainingCheckpoint
from client_agent.training.loop import TrainingOutcome, train
from client_agent.training.private_steps import PrivateSteps
from client_agent.training.rate_search import RateStore, search_key, search_rate
from client_agent.training.silo import Silo
from client_agent.training.text_losses import TextLoss, change_of_loss
from client_agent.training.trainer_task import train_by
from schemas.messages.federations import AdapterPlan, ScoresPlan, TrainingPlan
from schemas.messages.scores import Scores

log = logging.getLogger(__name__)


@dataclass
class LocalTraining:
    """The local training of one round: the injected adapter, its start, and the parts of the round.

    Attributes:
        silo: the silo, with the changes of its parts.
        start: the adapter before the steps.
        earlier: the client's training of the round before, with private tensors and optimiser state; None =
            it has none.
        parts: the features of the round.
        work: the round of a federation; None = the silo trains alone.
        is_federated: whether peers have made `start`.
        declines: whether the steps continue from what the client trained before, where the served weights are
            worse on its validation examples.
        surroundings: the digest of what acts in the model beside the adapter: base delta, global branch.
        restarts: whether the optimiser starts anew.
        private: how the steps are made differentially private; None = they are not.
    """

    silo: Silo
    adapter: Adapter
    plan: TrainingPlan
    scores: ScoresPlan
    origin: Origin
    learning_rate: float
    round_number: int
    total_rounds: int
    start: State
    earlier: TrainingResult | None
    stop: Callable[[], bool]
    parts: Sequence[Part] = ()
    work: OpenedRound | None = None
    is_federated: bool = False
    declines: bool = False
    surroundings: str = ""
    restarts: bool = False
    private: PrivateSteps | None = None
    checkpoint: TrainingCheckpoint | None = None
    report: Report | None = None

    @property
    def optimiser_state(self) -> Arrays | None:
        """The optimiser state that the steps continue from; None = a new one."""
        earlier = self.earlier
        if earlier is None or self.restarts or not earlier.optimiser:  # a trainer of one's own has none
            return None
        fits = all(part.continues_optimiser(self.adapter, earlier.optimiser) for part in self.parts)
        return earlier.optimiser if fits else None

    @property
    def steps(self) -> Callable[..., TrainingOutcome]:
        """The function that runs local steps: the agent's loop, or the silo's trainer, of this adapter."""
        silo, plan = self.silo, self.plan
        if silo.trainer is None:
            run = partial(train, options=silo.options, ranks=silo.ranks, private=self.private)
        else:
            examples = silo.data.train
            run = partial(train_by, silo.trainer, examples=examples, adapter_plan=self.origin.adapter)
        return partial(
            run,
            silo.base,
            self.adapter,
            silo.encoded(silo.data.train, plan.max_length),
            learning_rate=self.learning_rate,
            seed=plan.seed,
            stop=self.stop,
        )


def train_locally(training: LocalTraining) -> TrainingResult:
    """Score the start, train the adapter from it, score the result, and decide which of both is kept.

    Where validation examples are too few to decide, a latecomer keeps what it was served in its first round,
    and every other client keeps what it has trained.

    Raises:
        Stopped: the agent was stopped; the checkpoint has the position.
    """
    silo, adapter, plan, earlier = training.silo, training.adapter, training.plan, training.earlier
    adapter.load(training.start)
    if earlier is not None:
        adapter.load_private(earlier.private)
    effects = [part.begin(training) for part in training.parts]
    examiner = Examiner(silo, training.scores, plan.max_length, training.surroundings)
    served = examiner.examine_served(adapter, _examined(earlier) if earlier is not None else None)
    # Silos of 13 examples trained a better adapter than they were served in all of 16 second rounds, and
    # latecomers with 4 examples were served a better one (docs/lab-notes/federating.md).
    is_latecomer = training.is_federated and earlier is None and adapter.is_sent and acts(adapter)
    fallback: Side = "served" if is_latecomer else "trained"
    # A copy of what was scored: a part may have changed what was served.
    before = adapter.state(), adapter.private_state()
    # The choice would reveal validation examples, for which private steps do not account.
    is_declined = training.declines and training.private is None and _is_worse(examiner, served, training)
    if is_declined and earlier is not None:
        adapter.load(earlier.adapter)
        adapter.load_private(earlier.private)
    # After the start is loaded, to which the term refers.
    own_term = adapter.penalty(silo.data.train, plan.max_length, training.round_number)
    steps = RoundSteps(
        adapter,
        LocalSteps(plan, training.round_number, training.total_rounds, training.report),
        training.steps,
        training.optimiser_state,
        total_penalty([own_term, *(effect.penalty for effect in effects)]),
        training.checkpoint,
    )
    outcome = run_steps(steps, training.parts)
    # Before scoring: what is scored is what is sent and kept.
    adapter.end_round()
    states = [effect.state() for effect in effects if effect.state is not None]
    state = dict(states[-1]) if states else adapter.state()
    is_last = training.round_number == training.total_rounds
    trained = examiner.examine(adapter, is_end=not training.is_federated and is_last)
    for effect in effects:
        effect.finished()
    return TrainingResult(
        state,
        adapter.private_state(),
        outcome.optimiser_state,
        *before,
        origin=training.origin,
        learning_rate=training.learning_rate,
        **_results(
            served,
            trained,
            fallback,
            earlier if training.is_federated else None,
            examiner,
            began="trained" if is_declined else "served",
        ),
    )


def _is_worse(examiner: Examiner, served: Exam, training: LocalTraining) -> bool:
    """Whether the served weights are worse than the client's own of the round before, beyond the noise.

    That is two standard errors of the losses of its validation examples, paired by text.
    """
    earlier = training.earlier
    if earlier is None or earlier.validation_digest != examiner.validation_digest:
        return False
    change = change_of_loss(served.validation_texts, earlier.validation_texts.get("trained", ()))
    if change is None or change.verdict != "worse":
        return False
    log.info(
        "round %d: training continues from this client's own state: the served one is worse by %.3g ± %.2g "
        "on %d validation examples",
        training.round_number,
        change.value,
        change.error,
        change.count,
    )
    return True


def total_penalty(terms: Sequence[Penalty | None]) -> Penalty | None:
    """Return the sum of loss terms; None if there is none."""
    present = [term for term in terms if term is not None]
    if not present:
        return None
    return lambda parameters: torch.stack([term(parameters) for term in present]).sum()


class _Results(TypedDict):
    scores: Scores
    validation: dict[str, float]
    fingerprints: dict[str, str]
    tasks: dict[str, TaskScores]
    texts: dict[str, Sequence[TextLoss]]
    test_digest: str
    validation_texts: dict[str, Sequence[TextLoss]]
    validation_digest: str


def _results(
    served: Exam,
    trained: Exam,
    fallback: Side,
    before: TrainingResult | None,
    examiner: Examiner,
    *,
    began: Side,
) -> _Results:
    """Return scores, validation losses, fingerprints, and scores by task and text of a round.

    `before` is what was trained in the round before, with which `served` is compared.
    """
    mixing = None
    # Losses are paired text by text; new test data would compare different texts.
    if before is not None and before.test_digest == examiner.test_digest:
        mixing = change_of_loss(served.texts, before.texts.get("trained", ()))
    exams: Mapping[Side, Exam] = {"served": served, "trained": trained}
    better = better_of(served, trained, fallback=fallback)
    losses = {side: exam.validation for side, exam in exams.items()}
    return {
        "scores": Scores(
            served=served.scores, trained=trained.scores, kept=better, mixing=mixing, began=began
        ),
        "validation": {side: loss for side, loss in losses.items() if loss is not None},
        "fingerprints": {side: exam.fingerprint for side, exam in exams.items()},
        "tasks": {side: exam.tasks for side, exam in exams.items() if exam.tasks},
        "texts": {side: exam.texts for side, exam in exams.items() if exam.texts},
        "test_digest": examiner.test_digest,
        "validation_texts": {
            side: exam.validation_texts for side, exam in exams.items() if exam.validation_texts
        },
        "validation_digest": examiner.validation_digest,
    }


def learning_rate(
    silo: Silo,
    adapter: Adapter,
    plan: TrainingPlan,
    origin: Origin,
    rates: RateStore,
    stop: Callable[[], bool],
    *,
    first: AdapterPlan | None = None,
    parts: Sequence[Part] = (),
) -> float:
    """Return the rate of the silo's trainer, the plan's, or the searched one; the adapter was just injected.

    `first` is the adapter of the client's first round, if its rank may differ from the plan's.

    Raises:
        Stopped: `stop` returned true; the search continues the next time.
        LossNotFinite: training diverged at every rate.
    """
    if silo.trainer is not None and silo.trainer.trainer.learning_rate is not None:
        return silo.trainer.trainer.learning_rate
    if plan.learning_rate != "auto":
        return plan.learning_rate
    key = search_key(
        silo.base,
        adapter,
        silo.data,
        first or origin.adapter,
        plan,
        frames=origin.frames,
        options=silo.options,
        method=next((part.searched_as for part in parts if part.searched_as is not None), None),
    )
    with rates.searching(key):
        return search_rate(silo, adapter, plan, rates, key, stop=stop)


def better_of(served: Exam, trained: Exam, *, fallback: Side) -> Side:
    """Return the side with the lower validation loss, `served` if equal; `fallback` without losses."""
    if served.validation is None or trained.validation is None:
        return fallback
    # On a tie the served ones: they have seen the data of more clients.
    return "trained" if trained.validation < served.validation else "served"


def acts(adapter: Adapter) -> bool:
    """Whether the adapter changes the base model's function."""
    return any(
        (factors.A.any() and factors.B.any()) or (factors.bias is not None and factors.bias.any())
        for factors in adapter.as_lora().values()
    )


def _examined(earlier: TrainingResult) -> list[Exam]:
    return [
        Exam(
            earlier.fingerprints[name],
            scores,
            earlier.validation.get(name),
            earlier.tasks.get(name, {}),
            texts=earlier.texts.get(name, ()),
            validation_texts=earlier.validation_texts.get(name, ()),
        )
        for name, scores in (("trained", earlier.scores.trained), ("served", earlier.scores.served))
    ]


def zeros_like(adapter: Adapter) -> Mapping[str, NDArray[np.float32]]:
    return {name: np.zeros(shape, np.float32) for name, shape in adapter.layout.items()}
