"""Test an alignment pack: whether P and Q trained in one architecture help the other more than controls do.

P and Q are trained on a public pseudo-task in one model and continue in the other
(docs/explanation/alignment.md).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil

from client_agent.adapters.base import Adapter, State
from client_agent.adapters.frames import Frames, random_frames
from client_agent.adapters.inject import inject_pq
from client_agent.alignment.anchor_responses import pseudo_task
from client_agent.alignment.fit_packs import HELD_OUT_EVERY
from client_agent.alignment.module_selection import FITTING_TASKS, HELD_OUT_TASKS
from client_agent.alignment.pack import Pack
from client_agent.alignment.token_matching import Progress
from client_agent.errors import AlignmentImpossible, Stopped
from client_agent.model.examples import Example, encode_for
from client_agent.model.loading import BaseModel
from client_agent.training.evaluate import Evaluation, teacher_forced
from client_agent.training.loop import Step, train
from schemas.messages.alignment import Acceptance, Anchor, Direction, Ending, Start, verdict_on
from schemas.messages.federations import AdapterPlan, AlignmentPlan, TrainingPlan

TASKS = 6
SOURCE_STEPS = 60
TARGET_STEPS = 50
_SOURCE_BATCH = 16
_TARGET_BATCH = 8
# At the plan's learning rate every start converges on the pseudo-task, which hides the differences.
TARGET_RATE = 0.3
_RATE_OF_AUTO = 0.01  # P and Q, where every client searches its own rate
_MOST_EXAMPLES = 256  # per training set, and for the score
_FIRST_TASK = FITTING_TASKS + HELD_OUT_TASKS  # earlier tasks selected the modules


@dataclass(frozen=True, slots=True)
class Side:
    """A model, its frames of the modules that both packs select, and random frames per pseudo-task."""

    base: BaseModel
    frames: Frames
    random: Sequence[Frames]


@dataclass(frozen=True, slots=True)
class Trial:
    """Settings of a test: `training`'s learning rate, and `steps` steps in the target model."""

    adapter: AdapterPlan
    training: TrainingPlan
    anchors: Sequence[Anchor]
    seed: int
    steps: int = TARGET_STEPS

    @property
    def source_rate(self) -> float:
        rate = self.training.learning_rate
        return _RATE_OF_AUTO if rate == "auto" else rate

    def plan(self, steps: int, batch_size: int) -> TrainingPlan:
        """Copy the plan's model-dependent settings; a warm-up or a schedule would end elsewhere here."""
        return TrainingPlan(
            steps=steps,
            batch_size=batch_size,
            max_length=self.training.max_length,
            max_grad_norm=self.training.max_grad_norm,
            gradient_checkpointing=self.training.gradient_checkpointing,
            seed=self.seed,
        )


@dataclass(frozen=True, slots=True)
class _Task:
    """A pseudo-task's examples: source training, the same with wrong answers, target training, scoring."""

    source: Sequence[Example]
    wrong: Sequence[Example]
    target: Sequence[Example]
    held_out: Sequence[Example]


def require_testable(base: BaseModel, plan: AlignmentPlan) -> None:
    """Check that a plan aligns this base model to another.

    Raises:
        AlignmentImpossible: the plan's frames are random, or the base model is the pivot.
    """
    if plan.frames == "random":
        raise AlignmentImpossible(
            "the plan's alignment.frames are random: the packs are the control itself, so there is no "
            "difference to measure; test a plan with fitted frames"
        )
    _require_another(base, plan.pivot)


def _require_another(base: BaseModel, pivot: str) -> None:
    if base.slug == pivot:
        raise AlignmentImpossible(
            f"{base.slug} is the pivot, and the test needs another base model; run it where one is in use"
        )


def sides(
    base: BaseModel, base_pack: Pack, pivot: BaseModel, pivots_pack: Pack, trial: Trial
) -> tuple[Side, Side]:
    """Pair each model with its frames of the modules that both packs select.

    Raises:
        AlignmentImpossible: the pack is the pivot's or another model's, the packs share no module, or they
            share a module that the plan's adapter does not have.
    """
    _require_another(base, pivot.slug)
    shared = [name for name in base_pack.manifest.selected if name in pivots_pack.manifest.selected]
    if not shared or base_pack.manifest.alignment_set != pivots_pack.manifest.alignment_set:
        raise AlignmentImpossible(
            f"the packs of {base.slug} and {pivot.slug} share no (block, role): there is nothing to test; "
            "fit both with the same anchors and pivot"
        )

    def side(base: BaseModel, pack: Pack) -> Side:
        frames = pack.frames(base)
        random = [random_frames(base, trial.adapter, _seed(trial, task)) for task in range(TASKS)]
        foreign = [name for name in shared if name not in random[0]]
        if foreign:
            raise AlignmentImpossible(
                f"the pack of {base.slug} has frames of {foreign[0]}, and the plan's adapter has roles "
                f"{', '.join(trial.adapter.roles)} in {trial.adapter.blocks} blocks; test it with the plan "
                "that the pack was fitted for"
            )
        return Side(base, _only(frames, shared), [_only(drawn, shared) for drawn in random])

    return side(base, base_pack), side(pivot, pivots_pack)


def _only(frames: Frames, names: Sequence[str]) -> Frames:
    return {name: frames[name] for name in names}


def _seed(trial: Trial, task: int) -> int:
    # New random frames for each pseudo-task, since a single draw may be lucky.
    return trial.seed + task


def run_transfer_test(
    base: Side,
    pivot: Side,
    trial: Trial,
    *,
    pack: str,
    progress: Progress | None = None,
    stop: Callable[[], bool] | None = None,
) -> Acceptance:
    """Test the pack of `base`, whose digest is `pack`, in both directions.

    All starts continue with the same examples in the same order, for the same number of steps at TARGET_RATE
    times the plan's learning rate. Random frames are drawn per model and pseudo-task, and trained on the
    right task.

    Raises:
        Stopped: `stop` returned true.
    """
    tasks = [_task(trial, number) for number in range(TASKS)]
    learner = _Learner(trial, progress, stop)
    directions = [
        _direction(learner, source, target, tasks) for source, target in ((pivot, base), (base, pivot))
    ]
    return Acceptance(
        pack=pack,
        verdict=verdict_on(directions),
        directions=directions,
        taught=SOURCE_STEPS,
        steps=trial.steps,
        learning_rate=TARGET_RATE * trial.source_rate,
        seed=trial.seed,
    )


class _Learner:
    """Trains and scores P and Q; counts steps over all trainings for progress."""

    def __init__(self, trial: Trial, progress: Progress | None, stop: Callable[[], bool] | None) -> None:
        # P and Q only: other trainable tensors do not transfer to another architecture.
        self._adapter = trial.adapter.model_copy(update={"same_architecture_rank": 0, "private_rank": 0})
        self._trial = trial
        self._progress = progress
        self._stop = stop
        self._done = 0
        self._total = 2 * TASKS * (3 * SOURCE_STEPS + 4 * trial.steps)

    def train_source(self, base: BaseModel, frames: Frames, examples: Sequence[Example]) -> State:
        with inject_pq(base, self._adapter, frames, gated=False) as adapter:
            self._train(
                base,
                adapter,
                examples,
                self._trial.plan(SOURCE_STEPS, _SOURCE_BATCH),
                self._trial.source_rate,
            )
            return adapter.state()

    def train_target(self, base: BaseModel, frames: Frames, start: State | None, task: _Task) -> Evaluation:
        """Train from `start`, or from zero, in the target model; return the score on held-out anchors."""
        with inject_pq(base, self._adapter, frames, gated=False) as adapter:
            if start is not None:
                adapter.load(start)
            plan = self._trial.plan(self._trial.steps, _TARGET_BATCH)
            self._train(base, adapter, task.target, plan, TARGET_RATE * self._trial.source_rate)
            return self._scored(base, task)

    def score(self, base: BaseModel, frames: Frames, state: State, task: _Task) -> Evaluation:
        with inject_pq(base, self._adapter, frames, gated=False) as adapter:
            adapter.load(state)
            return self._scored(base, task)

    def _scored(self, base: BaseModel, task: _Task) -> Evaluation:
        return teacher_forced(base, encode_for(base, task.held_out, self._trial.training.max_length))

    def _train(
        self,
        base: BaseModel,
        adapter: Adapter,
        examples: Sequence[Example],
        plan: TrainingPlan,
        learning_rate: float,
    ) -> None:
        train(
            base,
            adapter,
            encode_for(base, examples, plan.max_length),
            plan,
            learning_rate=learning_rate,
            seed=plan.seed,
            round_number=1,
            total_rounds=1,
            on_step=self._step,
            stop=self._stop,
        )
        # Training returns early on a stop; a score of it would count as a result.
        if self._stop is not None and self._stop():
            raise Stopped

    def _step(self, step: Step) -> None:
        self._done += 1
        if self._progress is not None:
            self._progress("acceptance test", self._done, self._total)


def _direction(learner: _Learner, source: Side, target: Side, tasks: Sequence[_Task]) -> Direction:
    """Train in the source and continue in the target, for every pseudo-task."""
    source_scores: list[Evaluation] = []
    endings: dict[Start, list[Evaluation]] = {}
    for number, task in enumerate(tasks):
        right = learner.train_source(source.base, source.frames, task.source)
        source_scores.append(learner.score(source.base, source.frames, right, task))
        starts: dict[Start, tuple[Frames, State | None]] = {
            "right": (target.frames, right),
            "zero": (target.frames, None),
            "wrong_task": (target.frames, learner.train_source(source.base, source.frames, task.wrong)),
            "random_frames": (
                target.random[number],
                learner.train_source(source.base, source.random[number], task.source),
            ),
        }
        for name, (frames, start) in starts.items():
            endings.setdefault(name, []).append(learner.train_target(target.base, frames, start, task))
    return Direction(
        source=source.base.slug,
        target=target.base.slug,
        learnt=_ending(source_scores),
        endings={name: _ending(scores) for name, scores in endings.items()},
    )


def _ending(scores: Sequence[Evaluation]) -> Ending:
    return Ending(loss=[s.loss for s in scores], exact_match=[s.teacher_forced_match for s in scores])


def _task(trial: Trial, number: int) -> _Task:
    """Draw a pseudo-task and a wrong task on its prompts; scores are on held-out anchors.

    Held-out anchors fitted no frames except the pivot's, which are principal directions over all anchors.
    """
    anchors = trial.anchors
    first = _FIRST_TASK + 2 * number
    right, wrong = (pseudo_task(anchors, trial.seed, task, len(anchors)) for task in (first, first + 1))
    held_out = [i for i in right if i % HELD_OUT_EVERY == HELD_OUT_EVERY - 1]
    fitting = [i for i in right if i % HELD_OUT_EVERY != HELD_OUT_EVERY - 1]
    half = min(ceil(len(fitting) / 2), _MOST_EXAMPLES)

    def examples(answers: Mapping[int, str], chosen: Sequence[int]) -> list[Example]:
        return [Example(anchors[i].prompt, answers[i]) for i in chosen]

    return _Task(
        source=examples(right, fitting[:half]),
        wrong=examples(wrong, fitting[:half]),
        target=examples(right, fitting[half : 2 * half]),
        held_out=examples(right, held_out[:_MOST_EXAMPLES]),
    )
