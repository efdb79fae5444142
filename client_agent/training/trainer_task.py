"""Run the silo's trainer in place of Tessera's loop, and check its result."""

from __future__ import annotations

import random
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from math import isfinite
from pathlib import Path
from typing import cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from client_agent.adapters.base import Adapter, Penalty
from client_agent.adapters.peft_training import read_result, trainable_peft_model, write_start
from client_agent.errors import AgentError, LossNotFinite, Stopped
from client_agent.model.examples import Example
from client_agent.model.loading import BaseModel
from client_agent.model.tokens import TokenizedText
from client_agent.storage.files import make_folder, write_durably
from client_agent.training.checkpoint import TrainingCheckpoint, owner_of
from client_agent.training.loop import Step, TrainingOutcome
from client_agent.training.trainers import OpenedTrainer
from schemas.maths.factors import State
from schemas.maths.seeded_random import words
from schemas.messages.federations import AdapterPlan, TrainingPlan

_OWNER, _FILES, _START = "owner.txt", "files", "start"


class TrainerFailed(AgentError):
    """The silo's trainer raised an error, or returned an adapter that cannot be sent."""

    def __init__(self, name: str, round_number: int, trouble: str) -> None:
        super().__init__(
            f"round {round_number}: trainer {name!r} {trouble}. Nothing of this training was sent; the round "
            "resumes when the agent starts again"
        )


@dataclass(frozen=True, slots=True)
class TrainerTask:
    """The task of a trainer in a round.

    Attributes:
        base: the frozen base model, with `adapter` in place.
        adapter: holds the round's weights; a trainer may train its parameters in place.
        examples: the training examples.
        texts: their tokens, with the mask of what is learnt; a long raw text is several.
        plan: `steps` are to be taken, each on `batch_size` times `accumulation` texts.
        learning_rate: that of the trainer, or of the plan.
        seed: differs from round to round; of 31 bits.
        folder: for the trainer's own checkpoints; it stays until the round is trained, and no longer.
    """

    base: BaseModel
    adapter: Adapter
    adapter_plan: AdapterPlan
    examples: Sequence[Example]
    texts: Sequence[TokenizedText]
    plan: TrainingPlan
    learning_rate: float
    seed: int
    round_number: int
    total_rounds: int
    folder: Path
    _stop: Callable[[], bool]
    _on_step: Callable[[Step], None]
    _losses: list[float] = field(default_factory=list)
    _tokens: list[int] = field(default_factory=list)
    _started: float = field(default_factory=time.monotonic)

    def stop(self) -> bool:
        """Whether the agent is to stop; the trainer then stores its position in `folder`, and returns."""
        return self._stop()

    def report(self, step: int, loss: float, tokens: int) -> None:
        """Report a finished step: its number from 1, its mean loss, and the tokens that it read.

        A trainer that resumes at a later step reports from there on.

        Raises:
            ValueError: there is no such step, or it is not later than the last one.
            LossNotFinite: the loss is NaN or infinite.
        """
        if not len(self._losses) < step <= self.plan.steps:
            raise ValueError(
                f"step {step} was reported after step {len(self._losses)} of {self.plan.steps}; steps rise"
            )
        if not isfinite(loss):
            raise LossNotFinite(f"the loss of step {step} is {loss}; lower the learning rate")
        # A trainer may report every tenth step only.
        self._losses.extend([loss] * (step - len(self._losses)))
        self._tokens.append(tokens)
        self._on_step(Step(step, self.plan.steps, loss, sum(self._tokens), self.seconds))

    def peft_folder(self) -> Path:
        """Write the round's weights as a PEFT checkpoint that can be trained, for another process too.

        Raises:
            LayoutMismatch: the base model's layers are fused.
        """
        start = self.folder / _START
        write_start(start, self.base, self.adapter, self.adapter_plan)
        return start

    def peft_model(self, folder: Path | None = None) -> AbstractContextManager[nn.Module]:
        """Wrap the base model in peft's trainable model of the round's weights, or of a folder's.

        Until the context ends, `adapter` is not in the model.
        """
        return trainable_peft_model(self.base, folder or self.peft_folder())

    @property
    def losses(self) -> list[float]:
        """The losses reported so far; of a step that was not reported, that of the next."""
        return list(self._losses)

    @property
    def tokens(self) -> int:
        return sum(self._tokens)

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._started


def train_by(
    opened: OpenedTrainer,
    base: BaseModel,
    adapter: Adapter,
    texts: Sequence[TokenizedText],
    plan: TrainingPlan,
    *,
    examples: Sequence[Example],
    adapter_plan: AdapterPlan,
    learning_rate: float,
    seed: int,
    round_number: int,
    total_rounds: int,
    on_step: Callable[[Step], None],
    stop: Callable[[], bool],
    checkpoint: TrainingCheckpoint | None,
    optimiser_state: Mapping[str, NDArray[np.float32]] | None = None,
    penalty: Penalty | None = None,
) -> TrainingOutcome:
    """Train the adapter in place by a trainer of the silo's own: as `train`, without state of an optimiser.

    Raises:
        Stopped: `stop` returned true before the last step.
        TrainerFailed: the trainer failed, took other steps than the plan's, changed the base model, or
            returned tensors that do not fit or are not finite.
        LossNotFinite: it reported a loss that is not finite.
    """
    if penalty is not None:
        raise TrainerFailed(
            opened.name, round_number, "supports no penalty of the loss, and the plan's method has one"
        )
    facts = [opened.name, opened.options.model_dump(mode="json"), plan.model_dump(mode="json"), learning_rate]
    # Everything that determines the training: the trainer's own checkpoint is of these inputs alone.
    facts += [seed, round_number, total_rounds, base.slug, str(base.model.dtype)]
    facts += [checkpoint.belongs_to] if checkpoint is not None else []
    owner = owner_of(facts, [adapter.state(), adapter.private_state()], texts)
    with ExitStack() as stack:
        if checkpoint is not None:
            folder = checkpoint.trainer_folder
        else:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tessera-trainer-")))
        task = TrainerTask(
            base=base,
            adapter=adapter,
            adapter_plan=adapter_plan,
            examples=examples,
            texts=texts,
            plan=plan,
            learning_rate=learning_rate,
            # 31 bits, which every library accepts.
            seed=int(words(1, "trainer", seed, round_number)[0] >> np.uint64(33)),
            round_number=round_number,
            total_rounds=total_rounds,
            folder=_owned(folder, owner),
            _stop=stop,
            _on_step=on_step,
        )
        state = _trained(opened, task)
        adapter.load(state)
    return TrainingOutcome(task.losses, task.tokens, task.seconds, {})


def _trained(opened: OpenedTrainer, task: TrainerTask) -> State:
    """Return the adapter's state after training, checked."""

    def failed(trouble: str) -> TrainerFailed:
        return TrainerFailed(opened.name, task.round_number, trouble)

    # torch counts changes in place: this costs nothing, and a digest of the weights would take minutes.
    before = _versions(task.base)
    try:
        with _undisturbed(task.base):
            result = opened.trainer.train(task)
            if isinstance(result, Path):
                result = read_result(result, task.adapter, task.adapter_plan)
    except (Stopped, LossNotFinite):
        raise
    except Exception as error:  # a trainer of another package may raise any error
        raise failed(f"failed after {len(task.losses)} of {task.plan.steps} steps ({error!r})") from error
    if _versions(task.base) != before:
        raise failed("changed the base model, which must be the same in all silos")
    if len(task.losses) < task.plan.steps:
        if task.stop():
            raise Stopped
        raise failed(f"reported {len(task.losses)} of {task.plan.steps} steps; each one must be reported")
    return _checked(result, task, failed)


def _checked(state: object, task: TrainerTask, failed: Callable[[str], TrainerFailed]) -> State:
    if not isinstance(state, Mapping):
        raise failed(f"returned a {type(state).__name__}, neither tensors by name nor a folder")
    shapes = {name: np.shape(values) for name, values in state.items()}
    if shapes != task.adapter.layout:
        wrong = sorted(set(shapes.items()) ^ set(task.adapter.layout.items()))
        raise failed(f"returned tensors that do not fit the adapter, such as {wrong[0][0]} {wrong[0][1]}")
    infinite = [name for name, values in state.items() if not np.isfinite(values).all()]
    if infinite:
        raise failed(f"returned values that are not finite, in {infinite[0]}; lower the learning rate")
    return {name: np.asarray(values, np.float32) for name, values in state.items()}


def _versions(base: BaseModel) -> dict[str, int]:
    """Return how often each tensor of the base model was changed in place."""
    return {name: tensor._version for name, tensor in _bare_tensors(base)}


def _bare_tensors(base: BaseModel) -> Iterator[tuple[str, torch.Tensor]]:
    parameters = cast(nn.Module, base.model).named_parameters()
    return ((name, tensor) for name, tensor in parameters if not tensor.requires_grad)


@contextmanager
def _undisturbed(base: BaseModel) -> Iterator[None]:
    """Restore the random generators and the model's mode, which trainers change for the whole process."""
    python, numpy = random.getstate(), np.random.get_state()
    try:
        with torch.random.fork_rng([base.device] if base.device.type == "cuda" else []):
            yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)
        cast(nn.Module, base.model).eval()


def _owned(folder: Path, owner: str) -> Path:
    """Return the folder of a trainer's files, empty unless the same training has begun in it."""
    mark = folder / _OWNER
    if not mark.is_file() or mark.read_text("utf-8") != owner:
        # Files of another training: a trainer would resume from them.
        shutil.rmtree(folder, ignore_errors=True)
        make_folder(folder)
        write_durably(mark, owner.encode())
    make_folder(folder / _FILES)
    return folder / _FILES
