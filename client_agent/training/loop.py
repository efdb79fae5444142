"""Train an adapter for the steps of one round, seeded throughout."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import islice
from math import inf, isfinite
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as nnf

from client_agent.adapters.base import Adapter, Penalty, copy_in, copy_out
from client_agent.errors import LossNotFinite
from client_agent.model.forward import answer_logits
from client_agent.model.loading import BaseModel
from client_agent.model.tokens import Batch, TokenizedText, collate, pad_id
from client_agent.settings import OptimizerName
from client_agent.training.checkpoint import Position, TrainingCheckpoint, owner_of
from client_agent.training.gradient_checks import check_gradients, require_backward
from client_agent.training.optimiser import (
    OptimiserState,
    build_optimiser,
    learning_rate_factor,
    restore_state,
    saved_state,
)
from client_agent.training.packing import packed
from client_agent.training.private_steps import PrivateSteps
from client_agent.training.ranks import Leader, RankLost, answers_of
from schemas.maths.seeded_random import permutation, words
from schemas.messages.federations import TrainingPlan

log = logging.getLogger(__name__)
_WINDOW_BATCHES = 16
_WINDOWS_PER_PASS = 4
"""With fewer windows, sorting would put the same texts together in every pass."""


@dataclass(frozen=True, slots=True)
class TrainingOptions:
    """Memory and speed of local training, which are the silo's own; what is learnt is the plan's."""

    optimizer: OptimizerName = "adamw"
    packing: bool = False


DEFAULT_OPTIONS = TrainingOptions()


@dataclass(frozen=True, slots=True)
class Step:
    """One finished step: its number from 1, the mean loss per answer token, the totals so far.

    `learning_rate` is None by a trainer of a silo's own, which has its own schedule.
    """

    number: int
    total: int
    loss: float
    tokens: int
    seconds: float
    learning_rate: float | None = None


@dataclass(frozen=True, slots=True)
class TrainingOutcome:
    """Result of training: a loss per step (fewer than planned if stopped), tokens read, AdamW's state."""

    losses: list[float]
    tokens: int
    seconds: float
    optimiser_state: OptimiserState


def train(
    base: BaseModel,
    adapter: Adapter,
    texts: Sequence[TokenizedText],
    plan: TrainingPlan,
    *,
    learning_rate: float,
    seed: int,
    round_number: int,
    total_rounds: int,
    optimiser_state: Mapping[str, NDArray[np.float32]] | None = None,
    on_step: Callable[[Step], None] | None = None,
    stop: Callable[[], bool] | None = None,
    penalty: Penalty | None = None,
    checkpoint: TrainingCheckpoint | None = None,
    options: TrainingOptions = DEFAULT_OPTIONS,
    ranks: Leader | None = None,
    private: PrivateSteps | None = None,
) -> TrainingOutcome:
    """Train the adapter in place for `plan.steps` steps of AdamW on the answer tokens.

    The order of texts depends on `seed` and `round_number` only; the learning rate follows the plan's
    schedule over all `total_rounds`. `optimiser_state` of an earlier outcome resumes its optimiser. `stop` is
    called before each step. `penalty` is added to the loss of each step, and not to the reported losses.
    `checkpoint` resumes this training where an earlier process left it, with the same result to the bit.
    `ranks` share the texts of each step; the result is that of one process up to the order of sums.
    `private` draws the texts instead, and adds noise; no two runs of it are alike.

    Raises:
        MissingGradient: a parameter has no gradient after the first backward pass, or an operation none.
        LossNotFinite: the loss or the gradient is NaN or infinite.
        LayoutMismatch: `optimiser_state` belongs to another adapter.
        RankLost, TrainingBudgetSpent, LedgerDamaged: one of `ranks` ended, or `private` cannot be paid for.
    """
    parameters = adapter.named_parameters()
    optimiser = build_optimiser(
        options.optimizer, adapter, learning_rate=learning_rate, weight_decay=plan.weight_decay
    )
    optimiser.zero_grad(set_to_none=True)  # an earlier training of the adapter may have diverged
    if optimiser_state is not None:
        restore_state(optimiser, parameters, optimiser_state)
    run = _Run(base, parameters, optimiser, plan, options, ranks, private)
    run.begin_ranks(seed, round_number)
    with training_mode(base, plan, int(words(1, "training", seed, round_number)[0] >> np.uint64(1))):
        if checkpoint is not None:
            # What the training begins with is part of its identity: another start has another checkpoint.
            start = [copy_out(parameters), adapter.state(), optimiser_state or {}]
            run.resume(checkpoint, [learning_rate, seed, round_number, total_rounds], start, texts)
        steps = run.remaining(texts, seed, round_number)
        while len(run.losses) < plan.steps and not (stop is not None and stop()):
            step = (round_number - 1) * plan.steps + len(run.losses)
            factor = learning_rate_factor(step, plan, total_rounds * plan.steps)
            try:
                run.step(next(steps), factor, penalty)
            except RankLost:
                run.store(checkpoint, at_end=True)
                raise
            run.report(on_step, learning_rate * factor)
            run.store(checkpoint)
        run.store(checkpoint, at_end=True)
    return TrainingOutcome(run.losses, run.tokens, run.seconds, saved_state(optimiser, parameters))


class _Run:
    """A training in progress: what its steps change."""

    def __init__(
        self,
        base: BaseModel,
        parameters: Mapping[str, nn.Parameter],
        optimiser: torch.optim.Optimizer,
        plan: TrainingPlan,
        options: TrainingOptions,
        ranks: Leader | None,
        private: PrivateSteps | None,
    ) -> None:
        self._base = base
        self._parameters = parameters
        self._optimiser = optimiser
        self._plan = plan
        self._options = options
        self._ranks = ranks
        self._private = private
        # Adapters have rates of their own for some tensors; the schedule scales all of them.
        self._rates = [float(group["lr"]) for group in optimiser.param_groups]
        self._owner = ""
        self._started = time.monotonic()
        self.losses: list[float] = []
        self.tokens = 0

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._started

    def begin_ranks(self, seed: int, round_number: int) -> None:
        """Announce this training to its ranks, if there are any."""
        if self._ranks is not None:
            rules = {"plan": self._plan.model_dump(mode="json"), "options": asdict(self._options)}
            self._ranks.begin(**rules, seed=seed, round=round_number)

    def remaining(
        self, texts: Sequence[TokenizedText], seed: int, round_number: int
    ) -> Iterator[list[list[TokenizedText]]]:
        """Yield the batches of each step that is still to be taken."""
        plan, done = self._plan, len(self.losses)
        if self._private is not None:
            return self._private.samples(plan.steps - done)
        return deal(texts, plan, seed=seed, round_number=round_number, done=done)

    def report(self, on_step: Callable[[Step], None] | None, rate: float) -> None:
        if on_step is not None:
            done, planned = len(self.losses), self._plan.steps
            on_step(Step(done, planned, self.losses[-1], self.tokens, self.seconds, rate))

    def step(self, texts: Sequence[Sequence[TokenizedText]], factor: float, penalty: Penalty | None) -> None:
        """Take one optimiser step on batches of texts, at `factor` times the learning rate.

        Raises:
            MissingGradient, LossNotFinite, RankLost: see `train`.
        """
        for group, rate in zip(self._optimiser.param_groups, self._rates, strict=True):
            group["lr"] = rate * factor
        with require_backward():
            loss = self._backward(texts)
        if penalty is not None:
            # After the loss, whose gradients it adds to, and outside of the reported loss.
            torch.autograd.backward(penalty(self._parameters))
        if self._private is None:  # else the noise is finite, and a refusal would reveal an example
            check_gradients(self._parameters, loss, first=not self.losses)
        # Called without a limit too: it also computes the norm.
        norm = nn.utils.clip_grad_norm_(self._parameters.values(), self._plan.max_grad_norm or inf)
        if not isfinite(norm.item()):
            raise LossNotFinite(
                f"step {len(self.losses) + 1}: the gradient is not finite; lower learning_rate"
            )
        self._optimiser.step()
        # None, so that a missing gradient can be told from a zero one.
        self._optimiser.zero_grad(set_to_none=True)
        self.losses.append(loss)
        self.tokens += sum(len(text.ids) for batch in texts for text in batch)

    def _backward(self, texts: Sequence[Sequence[TokenizedText]]) -> float:
        if self._private is not None:
            return self._private.noisy_gradient(self._base, texts, self._parameters, _gradient_of_text)
        answers = answers_of(texts)
        if self._ranks is None:
            return gradients_of(self._base, texts, answers, self._options)
        # All divide by the answer tokens of the whole step, so that sums of gradients are those of one
        # process.
        share = self._ranks.divide(texts, len(self.losses) + 1)
        return self._ranks.add_up(gradients_of(self._base, share, answers, self._options))

    def resume(
        self,
        checkpoint: TrainingCheckpoint,
        facts: Sequence[object],
        start: Sequence[Mapping[str, NDArray[np.float32]]],
        texts: Sequence[TokenizedText],
    ) -> None:
        """Continue at the stored position of the same training (its facts, first tensors, texts), if any."""
        base = self._base
        place = [base.slug, str(base.device), str(base.model.dtype), checkpoint.belongs_to]
        rules: list[object] = [self._plan.model_dump(mode="json"), asdict(self._options)]
        rules += [self._private.facts] if self._private is not None else []
        self._owner = owner_of([*rules, *facts, *place], start, texts)
        position = checkpoint.load(self._owner)
        if position is None:
            return
        copy_in(self._parameters, position.parameters)
        restore_state(self._optimiser, self._parameters, position.optimiser)
        restore_generators(position.generators)
        self.losses = list(position.losses)
        self.tokens = position.tokens
        # The clock of this process, moved back by the time of the earlier ones.
        self._started = time.monotonic() - position.seconds
        log.info("training: resuming after step %d of %d", len(self.losses), self._plan.steps)

    def store(self, checkpoint: TrainingCheckpoint | None, *, at_end: bool = False) -> None:
        """Store the position if that is due, or at the end of a training that was stopped."""
        if checkpoint is None or not self.losses:
            return
        # The result of the step is stored right after this, and has it all.
        if len(self.losses) == self._plan.steps and not checkpoint.keeps_end:
            return
        if at_end or checkpoint.is_due:
            position = Position(
                parameters=copy_out(self._parameters),
                optimiser=saved_state(self._optimiser, self._parameters),
                generators=generator_states(self._base.device),
                losses=self.losses,
                tokens=self.tokens,
                seconds=self.seconds,
            )
            checkpoint.store(self._owner, position)


def answer_loss(base: BaseModel, batch: Batch) -> Tensor:
    """Sum the cross-entropy over the answer tokens of a batch, in nats: () float32."""
    logits, targets = answer_logits(base, batch)
    return nnf.cross_entropy(logits, targets, reduction="sum")


def gradients_of(
    base: BaseModel, step: Sequence[Sequence[TokenizedText]], answers: int, options: TrainingOptions
) -> float:
    """Add the gradient of the loss of batches, over all `answers` tokens of the step; return that loss."""
    total = 0.0
    for texts in step:
        batch = _on_device(base, texts, options)
        with torch.autocast(base.device.type, dtype=torch.bfloat16, enabled=base.device.type == "cuda"):
            # By the answer tokens of the whole step, not of the batch: accumulation must not change what is
            # learnt.
            loss = answer_loss(base, batch) / answers
        if loss.requires_grad:  # false without an adapter, which the caller reports
            torch.autograd.backward(loss)
        # The transfer also waits for the GPU, so that the step's time is measured.
        total += loss.item()
    return total


def _gradient_of_text(base: BaseModel, text: TokenizedText) -> float:
    return gradients_of(base, [[text]], max(1, answers_of([[text]])), DEFAULT_OPTIONS)


def _on_device(base: BaseModel, texts: Sequence[TokenizedText], options: TrainingOptions) -> Batch:
    batch = packed if options.packing else collate
    return batch(texts, pad=pad_id(base.tokenizer)).to(base.device)


def deal(
    texts: Sequence[TokenizedText], plan: TrainingPlan, *, seed: int, round_number: int, done: int
) -> Iterator[list[list[TokenizedText]]]:
    """Yield the batches of each step, `plan.accumulation` of them, after `done` steps."""
    batches = iterate_batches(texts, plan.batch_size, seed=seed, round_number=round_number)
    # A resumed training skips what it has seen.
    batches = islice(batches, done * plan.accumulation, None)
    while True:
        yield list(islice(batches, plan.accumulation))


def iterate_batches(
    texts: Sequence[TokenizedText], batch_size: int, *, seed: int, round_number: int
) -> Iterator[list[TokenizedText]]:
    """Yield batches without end, in shuffled passes; no text occurs twice in a pass.

    A pass is shuffled and cut into windows of up to 16 batches, at most a quarter of the pass. The texts of a
    window are sorted by length, so that a batch needs little padding, and its batches are shuffled. A batch
    that ends a pass continues with texts of the next. With fewer texts than `batch_size` a batch is one pass.
    """
    size = min(batch_size, len(texts))
    window = size * max(1, min(_WINDOW_BATCHES, len(texts) // (size * _WINDOWS_PER_PASS)))
    pending: list[int] = []
    epoch = 0
    while True:
        # An own permutation: that of torch may differ between versions.
        order = permutation(len(texts), "deal", seed, round_number, epoch)
        if pending:
            missing = size - len(pending)
            yield [texts[i] for i in pending + order[:missing]]
            order = order[missing:]
        whole = len(order) - len(order) % size
        for start in range(0, whole, window):
            group = order[start : min(start + window, whole)]
            if len(group) > size:
                # Texts of similar length need little padding in a batch.
                group.sort(key=lambda i: len(texts[i].ids))
            batches = [group[i : i + size] for i in range(0, len(group), size)]
            # Otherwise every window would go from short texts to long ones.
            for index in permutation(len(batches), "batches", seed, round_number, epoch, start):
                yield [texts[i] for i in batches[index]]
        pending = order[whole:]
        epoch += 1


@contextmanager
def training_mode(base: BaseModel, plan: TrainingPlan, seed: int) -> Iterator[None]:
    """Switch the base model to training (dropout from `seed`, optional checkpointing) and back."""
    model = cast(Any, base.model)
    devices = [base.device] if base.device.type == "cuda" else []
    # The caller's random numbers stay as they were.
    with torch.random.fork_rng(devices):
        torch.manual_seed(seed)
        model.train()
        if plan.gradient_checkpointing:
            model.activation_checkpointing_enable({"use_reentrant": False})
            # The call also makes embeddings require gradients, which only reentrant checkpointing needs: the
            # backward pass would include the layers below every adapter, and the hook would never be removed.
            model.disable_input_require_grads()
        try:
            yield
        finally:
            if plan.gradient_checkpointing:
                model.activation_checkpointing_disable()
            model.eval()


def generator_states(device: torch.device) -> dict[str, NDArray[np.uint8]]:
    """Return the states of torch's generators, by device: of the CPU, and of `device` where it is a GPU."""
    states: dict[str, NDArray[np.uint8]] = {"cpu": torch.get_rng_state().numpy()}
    if device.type == "cuda":
        states[str(device)] = torch.cuda.get_rng_state(device).numpy()
    return states


def restore_generators(states: Mapping[str, NDArray[np.uint8]]) -> None:
    """Set torch's generators to stored states."""
    for device, stored in states.items():
        state = torch.from_numpy(np.array(stored))
        if device == "cpu":
            torch.set_rng_state(state)
        else:
            torch.cuda.set_rng_state(state, torch.device(device))
