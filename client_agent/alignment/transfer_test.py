"""Test an alignment pack: does what one architecture learnt help the other, more than anything else would?

P and Q are taught a public pseudo-task in one model and go on learning in the other. Knows no coordinator.
(fedmosaic.md section 3, acceptance test)
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
from client_agent.model.examples import Example
from client_agent.model.loading import BaseModel
from client_agent.training.evaluate import evaluate
from client_agent.training.loop import Step, train
from schemas.messages.alignment import Acceptance, Anchor, Direction, Ending, Start, verdict_on
from schemas.messages.federations import AdapterPlan, AlignmentPlan, TrainingPlan
from schemas.messages.rounds import Metrics

TASKS = 6
TAUGHT_STEPS = 60
FURTHER_STEPS = 50
_TAUGHT_BATCH = 16
_FURTHER_BATCH = 8
# At the plan's own rate every start has learnt a pseudo-task by the end, and where it began no longer shows.
FURTHER_RATE = 0.3
_MOST_EXAMPLES = 256  # to be taught with, as many others to go on with, and the most that are scored on
_FIRST_TASK = FITTING_TASKS + HELD_OUT_TASKS  # those before have chosen what is shared


@dataclass(frozen=True, slots=True)
class Side:
    """A model, the frames of what both packs share, and per pseudo-task random ones in their place."""

    base: BaseModel
    frames: Frames
    random: Sequence[Frames]


@dataclass(frozen=True, slots=True)
class Trial:
    """How a pack is tested: under `training`'s rate, for `steps` further steps."""

    adapter: AdapterPlan
    training: TrainingPlan
    anchors: Sequence[Anchor]
    seed: int
    steps: int = FURTHER_STEPS

    @property
    def teaching(self) -> TrainingPlan:
        """How P and Q are taught."""
        return self._plan(TAUGHT_STEPS, _TAUGHT_BATCH, self.training.learning_rate)

    @property
    def going_on(self) -> TrainingPlan:
        """How they go on learning in the other model."""
        return self._plan(self.steps, _FURTHER_BATCH, FURTHER_RATE * self.training.learning_rate)

    def _plan(self, steps: int, batch_size: int, learning_rate: float) -> TrainingPlan:
        """Take from the plan what hangs on the models, not what was made for its own number of steps.

        A warm-up or a schedule over the plan's steps would end elsewhere here, or never.
        """
        return TrainingPlan(
            steps=steps,
            batch_size=batch_size,
            learning_rate=learning_rate,
            max_length=self.training.max_length,
            max_grad_norm=self.training.max_grad_norm,
            gradient_checkpointing=self.training.gradient_checkpointing,
            seed=self.seed,
        )


@dataclass(frozen=True, slots=True)
class _Task:
    """A pseudo-task: to be taught with, the same prompts wrongly answered, to go on with, to be scored on."""

    teach: Sequence[Example]
    wrong: Sequence[Example]
    further: Sequence[Example]
    held_out: Sequence[Example]


def require_testable(own: BaseModel, plan: AlignmentPlan) -> None:
    """Make sure that a plan aligns this base model to another.

    Raises:
        AlignmentImpossible: its frames are random, or the base model is the pivot itself.
    """
    if plan.frames == "random":
        raise AlignmentImpossible(
            "the plan's alignment.frames are random: the packs are the control itself, and no test can tell "
            "them apart; test under frames that are fitted"
        )
    _require_another(own, plan.pivot)


def _require_another(own: BaseModel, pivot: str) -> None:
    if own.slug == pivot:
        raise AlignmentImpossible(
            f"{own.slug} is the pivot, to which the others are aligned: test where another base model runs"
        )


def sides(own: BaseModel, of_own: Pack, pivot: BaseModel, of_pivot: Pack, trial: Trial) -> tuple[Side, Side]:
    """Put each model beside the frames that both packs share.

    Raises:
        AlignmentImpossible: the pack is the pivot's own or another model's, the packs share nothing, or they
            share what the plan's adapter does not have.
    """
    _require_another(own, pivot.slug)
    shared = [name for name in of_own.manifest.selected if name in of_pivot.manifest.selected]
    if not shared or of_own.manifest.alignment_set != of_pivot.manifest.alignment_set:
        raise AlignmentImpossible(
            f"the packs of {own.slug} and {pivot.slug} share no (block, role): there is nothing to test"
        )

    def side(base: BaseModel, pack: Pack) -> Side:
        frames = pack.frames(base)
        random = [random_frames(base, trial.adapter, _seed(trial, task)) for task in range(TASKS)]
        foreign = [name for name in shared if name not in random[0]]
        if foreign:
            raise AlignmentImpossible(
                f"the pack of {base.slug} has frames of {foreign[0]}, and the plan's adapter has roles "
                f"{', '.join(trial.adapter.roles)} in {trial.adapter.blocks} blocks: test it with the plan "
                "that it was made under"
            )
        return Side(base, _only(frames, shared), [_only(drawn, shared) for drawn in random])

    return side(own, of_own), side(pivot, of_pivot)


def _only(frames: Frames, names: Sequence[str]) -> Frames:
    return {name: frames[name] for name in names}


def _seed(trial: Trial, task: int) -> int:
    """Draw new random frames for each pseudo-task: one draw may be a lucky one."""
    return trial.seed + task


def judge(
    own: Side,
    pivot: Side,
    trial: Trial,
    *,
    pack: str,
    progress: Progress | None = None,
    stop: Callable[[], bool] | None = None,
) -> Acceptance:
    """Test the pack of `own`, whose digest is `pack`, in both directions.

    Every start goes on with the same examples in the same order, for as many steps at the same rate, which
    is FURTHER_RATE times the plan's. Random frames are drawn in each model and for each pseudo-task, and are
    taught the right task.

    Raises:
        Stopped: `stop` said so.
    """
    tasks = [_task(trial, number) for number in range(TASKS)]
    learner = _Learner(trial, progress, stop)
    directions = [
        _direction(learner, source, target, tasks) for source, target in ((pivot, own), (own, pivot))
    ]
    return Acceptance(
        pack=pack,
        verdict=verdict_on(directions),
        directions=directions,
        taught=TAUGHT_STEPS,
        steps=trial.steps,
        learning_rate=trial.going_on.learning_rate,
        seed=trial.seed,
    )


class _Learner:
    """Trains P and Q; counts the steps of all trainings together."""

    def __init__(self, trial: Trial, progress: Progress | None, stop: Callable[[], bool] | None) -> None:
        # P and Q alone: what may train beside them means nothing in another architecture.
        self._adapter = trial.adapter.model_copy(update={"same_architecture_rank": 0, "private_rank": 0})
        self._taught, self._further = trial.teaching, trial.going_on
        self._progress = progress
        self._stop = stop
        self._done = 0
        self._total = 2 * TASKS * (3 * TAUGHT_STEPS + 4 * trial.steps)

    def taught(self, base: BaseModel, frames: Frames, examples: Sequence[Example]) -> State:
        """Teach from zero; give P and Q."""
        with inject_pq(base, self._adapter, frames, gated=False) as adapter:
            self._train(base, adapter, examples, self._taught)
            return adapter.state()

    def gone_on(self, base: BaseModel, frames: Frames, start: State | None, task: _Task) -> Metrics:
        """Take the further steps from a start, or from zero; give the score on held-out anchors."""
        with inject_pq(base, self._adapter, frames, gated=False) as adapter:
            if start is not None:
                adapter.load(start)
            self._train(base, adapter, task.further, self._further)
            return evaluate(base, task.held_out, max_length=self._further.max_length)

    def score(self, base: BaseModel, frames: Frames, state: State, task: _Task) -> Metrics:
        """Score P and Q as they are."""
        with inject_pq(base, self._adapter, frames, gated=False) as adapter:
            adapter.load(state)
            return evaluate(base, task.held_out, max_length=self._further.max_length)

    def _train(
        self, base: BaseModel, adapter: Adapter, examples: Sequence[Example], plan: TrainingPlan
    ) -> None:
        train(
            base, adapter, examples, plan, seed=plan.seed, round_number=1, on_step=self._step, stop=self._stop
        )
        if self._stop is not None and self._stop():
            raise Stopped

    def _step(self, step: Step) -> None:
        self._done += 1
        if self._progress is not None:
            self._progress("acceptance test", self._done, self._total)


def _direction(learner: _Learner, source: Side, target: Side, tasks: Sequence[_Task]) -> Direction:
    """Teach in the source, go on in the target, one pseudo-task after the other."""
    learnt: list[Metrics] = []
    endings: dict[Start, list[Metrics]] = {}
    for number, task in enumerate(tasks):
        right = learner.taught(source.base, source.frames, task.teach)
        learnt.append(learner.score(source.base, source.frames, right, task))
        starts: dict[Start, tuple[Frames, State | None]] = {
            "right": (target.frames, right),
            "zero": (target.frames, None),
            "wrong_task": (target.frames, learner.taught(source.base, source.frames, task.wrong)),
            "random_frames": (
                target.random[number],
                learner.taught(source.base, source.random[number], task.teach),
            ),
        }
        for name, (frames, start) in starts.items():
            endings.setdefault(name, []).append(learner.gone_on(target.base, frames, start, task))
    return Direction(
        source=source.base.slug,
        target=target.base.slug,
        learnt=_ending(learnt),
        endings={name: _ending(scores) for name, scores in endings.items()},
    )


def _ending(scores: Sequence[Metrics]) -> Ending:
    return Ending(loss=[s.loss for s in scores], exact_match=[s.exact_match for s in scores])


def _task(trial: Trial, number: int) -> _Task:
    """Draw a pseudo-task and a wrong one on its prompts; it is scored on held-out anchors.

    They fitted no frame but the pivot's own, whose principal directions are those of all anchors.
    """
    anchors = trial.anchors
    first = _FIRST_TASK + 2 * number
    right, wrong = (pseudo_task(anchors, trial.seed, task, len(anchors)) for task in (first, first + 1))
    held_out = [i for i in right if i % HELD_OUT_EVERY == HELD_OUT_EVERY - 1]
    rest = [i for i in right if i % HELD_OUT_EVERY != HELD_OUT_EVERY - 1]
    half = min(ceil(len(rest) / 2), _MOST_EXAMPLES)

    def examples(answers: Mapping[int, str], chosen: Sequence[int]) -> list[Example]:
        return [Example(anchors[i].prompt, answers[i]) for i in chosen]

    return _Task(
        teach=examples(right, rest[:half]),
        wrong=examples(wrong, rest[:half]),
        further=examples(right, rest[half : 2 * half]),
        held_out=examples(right, held_out[:_MOST_EXAMPLES]),
    )
