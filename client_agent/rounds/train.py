"""Local training of one round: score, train, score, keep the better."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TypedDict, cast

import numpy as np
from numpy.typing import NDArray

from client_agent.adapters.base import Adapter, Penalty, State
from client_agent.adapters.personal_lora import PersonalLora
from client_agent.adapters.provenance import Origin
from client_agent.adapters.proximal import pull_to
from client_agent.adapters.rank_pruning import Pruner
from client_agent.adapters.variational.adapter import VariationalAdapter
from client_agent.rounds.examine import Exam, Examiner
from client_agent.rounds.importance import readmit_ranks
from client_agent.rounds.local_steps import LocalSteps, Report, run_steps
from client_agent.rounds.trained import Arrays, Side, Trained
from client_agent.storage.final_scores import TaskScores
from client_agent.strategies.base import Traits
from client_agent.training.checkpoint import TrainingCheckpoint
from client_agent.training.distillation import both
from client_agent.training.loop import TrainingOutcome, train
from client_agent.training.paired import TextLoss, change_of_loss
from client_agent.training.private_steps import PrivateSteps
from client_agent.training.rate_search import RateStore, search_key, search_rate
from client_agent.training.silo import Silo
from client_agent.training.trainer_task import train_by
from schemas.messages.federations import AdapterPlan, ScoresPlan, TrainingPlan
from schemas.messages.scores import Scores

_PLAIN = Traits()


def train_locally(
    silo: Silo,
    adapter: Adapter,
    plan: TrainingPlan,
    *,
    learning_rate: float,
    origin: Origin,
    round_number: int,
    total_rounds: int,
    start: State,
    earlier: Trained | None,
    federated: bool,
    scores: ScoresPlan,
    surroundings: str = "",
    traits: Traits = _PLAIN,
    stop: Callable[[], bool],
    checkpoint: TrainingCheckpoint | None = None,
    report: Report | None = None,
    peers: Penalty | None = None,
    private: PrivateSteps | None = None,
) -> Trained:
    """Train the injected adapter from `start` with the private tensors and the optimiser state of `earlier`.

    `federated`: peers have made `start`. Where validation examples are too few, a latecomer keeps it in its
    first round, and every other client keeps the trained adapter. `surroundings` is the digest of what else
    acts in the model: base delta, global branch. `peers` is the pull to the outputs of peers' models.
    `private` makes the steps differentially private.

    Raises:
        Stopped: `stop` returned true; `checkpoint` has the position.
    """
    _begin(silo, adapter, plan, start, earlier, traits)
    pruner = Pruner(adapter, traits.pruning) if traits.pruning is not None else None
    base_term = pruner.penalty if pruner else adapter.penalty(silo.data.train, plan.max_length, round_number)
    penalty = base_term if traits.proximal is None else pull_to(adapter.state(), traits.proximal)
    examiner = Examiner(silo, scores, plan.max_length, surroundings)
    served = examiner.examine_served(adapter, _examined(earlier) if earlier is not None else None)
    # Silos of 13 examples trained a better adapter than they were served in all of 16 second rounds, and
    # latecomers with 4 examples were served a better one (docs/lab-notes/federating.md).
    is_latecomer = federated and earlier is None and _is_common(adapter) and acts(adapter)
    fallback: Side = "served" if is_latecomer else "trained"
    before = adapter.state(), adapter.private_state()
    training = partial(
        _training_of(silo, origin.adapter, private),
        silo.base,
        adapter,
        silo.encoded(silo.data.train, plan.max_length),
        learning_rate=learning_rate,
        seed=plan.seed,
        stop=stop,
    )
    outcome = run_steps(
        adapter,
        training,
        LocalSteps(plan, round_number, total_rounds, report),
        optimiser_state=_optimiser_state(earlier, adapter, traits),
        penalty=both(penalty, peers),
        checkpoint=checkpoint,
    )
    adapter.end_round()
    state = pruner.pruned() if pruner else adapter.state()
    trained = examiner.examine(adapter, is_end=not federated and round_number == total_rounds)
    return Trained(
        state,
        adapter.private_state(),
        outcome.optimiser_state,
        *before,
        origin=origin,
        learning_rate=learning_rate,
        **_results(served, trained, fallback, earlier if federated else None, examiner.test_digest),
    )


def _begin(
    silo: Silo, adapter: Adapter, plan: TrainingPlan, start: State, earlier: Trained | None, traits: Traits
) -> None:
    """Load the round's start and the private tensors of `earlier`; return idle ranks that matter now."""
    adapter.load(start)
    if earlier is not None:
        adapter.load_private(earlier.private)
        if traits.importance is not None:
            readmit_ranks(cast(VariationalAdapter, adapter), silo, plan)


def _training_of(
    silo: Silo, adapter: AdapterPlan, private: PrivateSteps | None
) -> Callable[..., TrainingOutcome]:
    """Return the silo's training: the own loop, or its trainer."""
    if silo.trainer is None:
        return partial(train, options=silo.options, ranks=silo.ranks, private=private)
    return partial(train_by, silo.trainer, examples=silo.data.train, adapter_plan=adapter)


class _Results(TypedDict):
    scores: Scores
    validation: dict[str, float]
    fingerprints: dict[str, str]
    tasks: dict[str, TaskScores]
    texts: dict[str, Sequence[TextLoss]]
    test_digest: str


def _results(
    served: Exam, trained: Exam, fallback: Side, before: Trained | None, test_digest: str
) -> _Results:
    """Return scores, validation losses, fingerprints, and scores by task and text of a round.

    `before` is what was trained in the round before, with which `served` is compared.
    """
    mixing = None
    if before is not None and before.test_digest == test_digest:
        mixing = change_of_loss(served.texts, before.texts.get("trained", ()))
    exams: Mapping[Side, Exam] = {"served": served, "trained": trained}
    better = better_of(served, trained, fallback=fallback)
    losses = {side: exam.validation for side, exam in exams.items()}
    return {
        "scores": Scores(served=served.scores, trained=trained.scores, kept=better, mixing=mixing),
        "validation": {side: loss for side, loss in losses.items() if loss is not None},
        "fingerprints": {side: exam.fingerprint for side, exam in exams.items()},
        "tasks": {side: exam.tasks for side, exam in exams.items() if exam.tasks},
        "texts": {side: exam.texts for side, exam in exams.items() if exam.texts},
        "test_digest": test_digest,
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
    traits: Traits = _PLAIN,
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
        method=traits.importance,
    )
    with rates.searching(key):
        return search_rate(silo, adapter, plan, rates, key, stop=stop)


def better_of(served: Exam, trained: Exam, *, fallback: Side) -> Side:
    """Return the side with the lower validation loss, `served` if equal; `fallback` without losses."""
    if served.validation is None or trained.validation is None:
        return fallback
    return "trained" if trained.validation < served.validation else "served"


def acts(adapter: Adapter) -> bool:
    """Whether the adapter changes the base model's function."""
    return any(
        (factors.A.any() and factors.B.any()) or (factors.bias is not None and factors.bias.any())
        for factors in adapter.as_lora().values()
    )


def _is_common(adapter: Adapter) -> bool:
    """Whether the adapter in the model is the one that peers have made."""
    return not isinstance(adapter, PersonalLora)


def _examined(earlier: Trained) -> list[Exam]:
    return [
        Exam(
            earlier.fingerprints[name],
            scores,
            earlier.validation.get(name),
            earlier.tasks.get(name, {}),
            texts=earlier.texts.get(name, ()),
        )
        for name, scores in (("trained", earlier.scores.trained), ("served", earlier.scores.served))
        if name in earlier.fingerprints
    ]


def _optimiser_state(earlier: Trained | None, adapter: Adapter, traits: Traits) -> Arrays | None:
    if earlier is None or traits.restarts or not earlier.optimiser:  # a trainer of one's own has none
        return None
    if not traits.mixed_ranks and traits.importance is None:
        return earlier.optimiser
    shapes = {f"{name}.exp_avg": tensor.shape for name, tensor in adapter.named_parameters().items()}
    stored = {name: values.shape for name, values in earlier.optimiser.items() if name.endswith(".exp_avg")}
    return earlier.optimiser if shapes == stored else None  # pruned, or with parameters of an earlier version


def zeros_like(adapter: Adapter) -> Mapping[str, NDArray[np.float32]]:
    return {name: np.zeros(shape, np.float32) for name, shape in adapter.layout.items()}
