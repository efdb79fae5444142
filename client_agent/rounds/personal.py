"""Run a round's local steps: those of the adapter in the model, and before them those of a common one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from client_agent.adapters.base import Adapter, Penalty
from client_agent.adapters.personal_lora import PersonalLora
from client_agent.errors import Stopped
from client_agent.training.checkpoint import TrainingCheckpoint
from client_agent.training.loop import TrainingOutcome
from client_agent.training.progress import TrainingProgress

Arrays = dict[str, NDArray[np.float32]]
_COMMON = "common."


def run_steps(
    adapter: Adapter,
    training: Callable[..., TrainingOutcome],
    steps: int,
    title: str,
    *,
    optimiser_state: Mapping[str, NDArray[np.float32]] | None,
    penalty: Penalty | None,
    checkpoint: TrainingCheckpoint | None,
) -> TrainingOutcome:
    """Train an adapter for a round; of a `PersonalLora` first the common one, and then the client's own.

    The outcome is that of the adapter in the model, with the optimiser states of both. A process that is
    killed while the client's own adapter is trained does not repeat the common one.

    Args:
        training: `train` of this adapter, data and plan.
        optimiser_state: that of the last round's outcome.

    Raises:
        Stopped: the agent was stopped.
    """
    if not isinstance(adapter, PersonalLora):
        return _finished(training, steps, title, optimiser_state, penalty, checkpoint)
    penalty = adapter.pull_to_common()  # which is trained next
    beside = checkpoint.beside("common") if checkpoint is not None else None
    state = optimiser_state or {}
    of_common = {n.removeprefix(_COMMON): values for n, values in state.items() if n.startswith(_COMMON)}
    of_personal = {n: values for n, values in state.items() if not n.startswith(_COMMON)}
    with adapter.common_in_model():
        common = _finished(training, steps, f"{title}, common adapter", of_common, None, beside)
    outcome = _finished(training, steps, title, of_personal, penalty, checkpoint)
    renamed = {f"{_COMMON}{name}": values for name, values in common.optimiser_state.items()}
    return replace(outcome, optimiser_state={**outcome.optimiser_state, **renamed})


def _finished(
    training: Callable[..., TrainingOutcome],
    steps: int,
    title: str,
    optimiser_state: Mapping[str, NDArray[np.float32]] | None,
    penalty: Penalty | None,
    checkpoint: TrainingCheckpoint | None,
) -> TrainingOutcome:
    with TrainingProgress(title) as progress:
        outcome = training(
            optimiser_state=optimiser_state, on_step=progress, penalty=penalty, checkpoint=checkpoint
        )
    if len(outcome.losses) < steps:
        raise Stopped
    return outcome
