"""Run a round's local steps; two adapters, or the experts of a bank, train one after another."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from client_agent.adapters.base import Adapter, Penalty
from client_agent.adapters.personal_lora import PersonalLora
from client_agent.errors import Stopped
from client_agent.experts.routed import RoutedExperts
from client_agent.training.checkpoint import TrainingCheckpoint
from client_agent.training.loop import Step, TrainingOutcome
from client_agent.training.progress import TrainingProgress
from schemas.messages.federations import TrainingPlan

Arrays = dict[str, NDArray[np.float32]]
Training = Callable[..., TrainingOutcome]
Report = Callable[[Step, int, int], None]
_COMMON = "common."


@dataclass(frozen=True, slots=True)
class LocalSteps:
    """The steps of a round, and its place among all rounds, which sets schedule and order of texts.

    Attributes:
        report: called after each step, with the number of steps before this part of the round, and of all.
        done, all_steps: these numbers; None = the plan's steps.
    """

    plan: TrainingPlan
    round_number: int
    total_rounds: int
    report: Report | None = None
    done: int = 0
    all_steps: int | None = None

    @property
    def title(self) -> str:
        return f"round {self.round_number}"

    def turn(self, index: int, count: int, steps: int, done: int) -> LocalSteps:
        """Return a turn's steps, after `done` others: those of a round among `count` times as many.

        So the schedule falls over the turns as over whole rounds, and no turn begins with the same texts.
        """
        plan = self.plan.model_copy(update={"steps": steps})
        return LocalSteps(
            plan,
            (self.round_number - 1) * count + index + 1,
            self.total_rounds * count,
            self.report,
            done,
            self.plan.steps,
        )

    def half(self, index: int) -> LocalSteps:
        """Return one of the two parts of a round that trains two adapters for as many steps each."""
        return replace(self, done=index * self.plan.steps, all_steps=2 * self.plan.steps)

    def watched(self, show: Callable[[Step], None]) -> Callable[[Step], None]:
        """Return a callback that shows a step and reports it."""

        def on_step(step: Step) -> None:
            show(step)
            if self.report is not None:
                self.report(step, self.done, self.all_steps or self.plan.steps)

        return on_step


def run_steps(
    adapter: Adapter,
    training: Training,
    local: LocalSteps,
    *,
    optimiser_state: Mapping[str, NDArray[np.float32]] | None,
    penalty: Penalty | None,
    checkpoint: TrainingCheckpoint | None,
) -> TrainingOutcome:
    """Train an adapter for a round; of a `PersonalLora` first the common one, and then the client's own.

    The outcome is that of the adapter in the model, with the optimiser states of both. Of `RoutedExperts` the
    specialists of the round train in turns. A process that is killed in a later part does not repeat an
    earlier one.

    Args:
        training: `train` of this adapter and data.
        optimiser_state: that of the last round's outcome.

    Raises:
        Stopped: the agent was stopped.
    """
    if isinstance(adapter, RoutedExperts):
        return _in_turns(adapter, training, local, penalty, checkpoint)
    if not isinstance(adapter, PersonalLora):
        return _finished(training, local, local.title, optimiser_state, penalty, checkpoint)
    penalty = adapter.pull_to_common()  # which is trained next
    beside = checkpoint.beside("common") if checkpoint is not None else None
    state = optimiser_state or {}
    of_common = {n.removeprefix(_COMMON): values for n, values in state.items() if n.startswith(_COMMON)}
    of_personal = {n: values for n, values in state.items() if not n.startswith(_COMMON)}
    with adapter.common_in_model():
        common = _finished(training, local.half(0), f"{local.title}, common adapter", of_common, None, beside)
    outcome = _finished(training, local.half(1), local.title, of_personal, penalty, checkpoint)
    renamed = {f"{_COMMON}{name}": values for name, values in common.optimiser_state.items()}
    return replace(outcome, optimiser_state={**outcome.optimiser_state, **renamed})


def _in_turns(
    adapter: RoutedExperts,
    training: Training,
    local: LocalSteps,
    penalty: Penalty | None,
    checkpoint: TrainingCheckpoint | None,
) -> TrainingOutcome:
    """Train the specialists of a round beside the shared expert, turn by turn, each with a new optimiser.

    The optimiser is not kept between rounds, since they train different experts.
    """
    turns = adapter.begin_round(local.round_number, local.total_rounds, local.plan.steps)
    outcomes: list[TrainingOutcome] = []
    for index, turn in enumerate(turns):
        adapter.choose(turn.specialists)
        is_last = index == len(turns) - 1
        beside = checkpoint if checkpoint is None or is_last else checkpoint.beside(f"turn_{index}")
        experts = ", ".join(map(str, turn.specialists))
        outcomes.append(
            _finished(
                training,
                local.turn(index, len(turns), turn.steps, sum(earlier.steps for earlier in turns[:index])),
                f"{local.title}, expert {experts}",
                None,
                penalty if adapter.router is not None else None,
                beside,
            )
        )
    return TrainingOutcome(
        losses=[loss for outcome in outcomes for loss in outcome.losses],
        tokens=sum(outcome.tokens for outcome in outcomes),
        seconds=sum(outcome.seconds for outcome in outcomes),
        optimiser_state={},
    )


def _finished(
    training: Training,
    local: LocalSteps,
    title: str,
    optimiser_state: Mapping[str, NDArray[np.float32]] | None,
    penalty: Penalty | None,
    checkpoint: TrainingCheckpoint | None,
) -> TrainingOutcome:
    with TrainingProgress(title) as progress:
        outcome = training(
            plan=local.plan,
            round_number=local.round_number,
            total_rounds=local.total_rounds,
            optimiser_state=optimiser_state,
            on_step=local.watched(progress),
            penalty=penalty,
            checkpoint=checkpoint,
        )
    if len(outcome.losses) < local.plan.steps:
        raise Stopped
    return outcome
