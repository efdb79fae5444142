"""The local steps of a round, and how they are run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from client_agent.adapters.base import Adapter, Penalty
from client_agent.errors import Stopped
from client_agent.rounds.part import Part
from client_agent.training.checkpoint import TrainingCheckpoint
from client_agent.training.loop import Step, TrainingOutcome
from client_agent.training.progress import TrainingProgress
from schemas.messages.federations import TrainingPlan

Arrays = dict[str, NDArray[np.float32]]
Training = Callable[..., TrainingOutcome]
Report = Callable[[Step, int, int], None]


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


@dataclass(frozen=True, slots=True)
class RoundSteps:
    """The local steps of a round, as a part may run them in its own way.

    Attributes:
        training: `train` of this adapter and data.
        optimiser_state: that of the last round's outcome.
        penalty: the loss term of every step.
    """

    adapter: Adapter
    local: LocalSteps
    training: Training
    optimiser_state: Mapping[str, NDArray[np.float32]] | None
    penalty: Penalty | None
    checkpoint: TrainingCheckpoint | None

    def all_at_once(self) -> TrainingOutcome:
        """Train the adapter for all steps."""
        local = self.local
        return self.run(local, local.title, optimiser_state=self.optimiser_state, penalty=self.penalty)

    def run(
        self,
        local: LocalSteps,
        title: str,
        *,
        optimiser_state: Mapping[str, NDArray[np.float32]] | None,
        penalty: Penalty | None,
        beside: str | None = None,
    ) -> TrainingOutcome:
        """Run some of the steps.

        Args:
            beside: the name of these steps if others follow in the round. A process that is killed during
                the later steps does not repeat these.

        Raises:
            Stopped: the agent was stopped.
        """
        checkpoint = self.checkpoint
        if checkpoint is not None and beside is not None:
            checkpoint = checkpoint.beside(beside)
        with TrainingProgress(title) as progress:
            outcome = self.training(
                plan=local.plan,
                round_number=local.round_number,
                total_rounds=local.total_rounds,
                optimiser_state=optimiser_state,
                on_step=local.watched(progress),
                penalty=penalty,
                checkpoint=checkpoint,
            )
        # Training ends early only on a stop; its position is in the checkpoint.
        if len(outcome.losses) < local.plan.steps:
            raise Stopped
        return outcome


def run_steps(steps: RoundSteps, parts: Sequence[Part]) -> TrainingOutcome:
    """Run the steps of a round: in the way of the first part that has one, else all at once.

    Raises:
        Stopped: the agent was stopped.
    """
    for part in parts:
        if (outcome := part.run(steps)) is not None:
            return outcome
    return steps.all_at_once()
