"""Train an adapter for the steps of one round, seeded throughout."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import cos, inf, isfinite, pi
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as nnf

from client_agent.adapters.base import Adapter
from client_agent.errors import LossNotFinite, MissingGradient
from client_agent.model.examples import Example, encode_for
from client_agent.model.loading import BaseModel
from client_agent.model.tokens import Batch, Encoded, answer_logits, collate, pad_id
from client_agent.training.data import iterate_batches
from client_agent.training.optimiser import OptimiserState, build_optimiser, restore_state, saved_state
from client_agent.training.options import DEFAULT_OPTIONS, TrainingOptions
from client_agent.training.packing import packed
from schemas.maths.seeded_random import words
from schemas.messages.federations import TrainingPlan


@dataclass(frozen=True, slots=True)
class Step:
    """One finished step: its number from 1, the mean loss per answer token, the totals so far."""

    number: int
    total: int
    loss: float
    tokens: int
    seconds: float


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
    examples: Sequence[Example],
    plan: TrainingPlan,
    *,
    seed: int,
    round_number: int,
    optimiser_state: Mapping[str, NDArray[np.float32]] | None = None,
    on_step: Callable[[Step], None] | None = None,
    stop: Callable[[], bool] | None = None,
    penalty: Callable[[Mapping[str, nn.Parameter]], Tensor] | None = None,
    options: TrainingOptions = DEFAULT_OPTIONS,
) -> TrainingOutcome:
    """Train the adapter in place for `plan.steps` steps of AdamW on the answer tokens.

    The order of examples depends on `seed` and `round_number` only. `optimiser_state` of an earlier outcome
    resumes its optimiser. `stop` is called before each step. `penalty` is added to the loss of each step, and
    is not part of the reported losses.

    Raises:
        MissingGradient: a trainable parameter has no gradient after the first backward pass, or an operation
            has no backward pass.
        LossNotFinite: the loss or the gradient is NaN or infinite.
        TextTooLong: an example exceeds the base model's context.
        LayoutMismatch: `optimiser_state` belongs to another adapter.
    """
    texts = encode_for(base, examples, plan.max_length)
    batches = iterate_batches(texts, plan.batch_size, seed=seed, round_number=round_number)
    parameters = adapter.named_parameters()
    learning_rate = 0.01 if plan.learning_rate == "auto" else plan.learning_rate
    optimiser = build_optimiser(
        options.optimizer, adapter, learning_rate=learning_rate, weight_decay=plan.weight_decay
    )
    if optimiser_state is not None:
        restore_state(optimiser, parameters, optimiser_state)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimiser, lambda step: learning_rate_factor(step, plan))
    losses: list[float] = []
    tokens = 0
    started = time.monotonic()
    with _training(base, plan, seed, round_number):
        while len(losses) < plan.steps and not (stop is not None and stop()):
            step = [_on_device(base, next(batches), options) for _ in range(plan.accumulation)]
            with _require_backward():
                loss = _backward(base, step)
            if penalty is not None:
                torch.autograd.backward(penalty(parameters))
            _check_gradients(parameters, loss, first=not losses)
            norm = nn.utils.clip_grad_norm_(parameters.values(), plan.max_grad_norm or inf)
            if not isfinite(norm.item()):
                raise LossNotFinite(
                    f"step {len(losses) + 1}: the gradient is not finite; lower learning_rate"
                )
            optimiser.step()
            schedule.step()
            optimiser.zero_grad(set_to_none=True)
            losses.append(loss)
            tokens += sum(batch.tokens for batch in step)
            if on_step is not None:
                on_step(Step(len(losses), plan.steps, loss, tokens, time.monotonic() - started))
    return TrainingOutcome(losses, tokens, time.monotonic() - started, saved_state(optimiser, parameters))


def learning_rate_factor(step: int, plan: TrainingPlan) -> float:
    """Return the factor of the learning rate at a step (from 0): linear warm-up, then decay to 0."""
    warm = min(1.0, (step + 1) / (plan.warmup_steps + 1))
    remaining = max(0.0, (plan.steps - step) / max(1, plan.steps - plan.warmup_steps))
    match plan.schedule:
        case "constant":
            return warm
        case "linear":
            return min(warm, remaining)
        case "cosine":
            return warm * (1 - cos(pi * min(1.0, remaining))) / 2


def answer_loss(base: BaseModel, batch: Batch) -> Tensor:
    """Sum the cross-entropy over the answer tokens of a batch, in nats: () float32."""
    logits, targets = answer_logits(base.model, base.parts, batch)
    return nnf.cross_entropy(logits, targets, reduction="sum")


def _backward(base: BaseModel, step: Sequence[Batch]) -> float:
    """Add the gradient of the mean loss per answer token over all batches of a step; return the mean."""
    answers = sum(batch.answers for batch in step)
    total = 0.0
    for batch in step:
        with torch.autocast(base.device.type, dtype=torch.bfloat16, enabled=base.device.type == "cuda"):
            loss = answer_loss(base, batch) / answers
        if loss.requires_grad:  # false without an adapter, which the caller reports
            torch.autograd.backward(loss)
        total += loss.item()
    return total


@contextmanager
def _require_backward() -> Iterator[None]:
    """Raise `MissingGradient` at an operation without a backward pass.

    torch only warns, and every parameter may still have a gradient, through residuals and adapters, which is
    wrong.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("error", ".*an autograd kernel was not registered")
        try:
            yield
        except UserWarning as warning:
            raise MissingGradient(
                f"gradients do not pass through the base model: {str(warning).partition(':')[0]} cannot be "
                "differentiated; load the model again, or without quantization"
            ) from warning


def _check_gradients(parameters: Mapping[str, nn.Parameter], loss: float, *, first: bool) -> None:
    if not isfinite(loss):
        raise LossNotFinite(
            f"the loss became {loss}; lower learning_rate, or load the base model in float32 or bfloat16"
        )
    without = [name for name, parameter in parameters.items() if parameter.grad is None]
    if first and (without or not parameters):
        raise MissingGradient(
            f"no gradient reaches {', '.join(without[:3]) or 'anything'} ({len(without)} of "
            f"{len(parameters)} parameters); check that the adapter is in place and the base model is "
            "differentiable"
        )


def _on_device(base: BaseModel, texts: Sequence[Encoded], options: TrainingOptions) -> Batch:
    batch = packed if options.packing else collate
    return batch(texts, pad=pad_id(base.tokenizer)).to(base.device)


@contextmanager
def _training(base: BaseModel, plan: TrainingPlan, seed: int, round_number: int) -> Iterator[None]:
    """Switch the base model to training (seeded dropout, optional checkpointing) and back."""
    model = cast(Any, base.model)
    devices = [base.device] if base.device.type == "cuda" else []
    with torch.random.fork_rng(devices):
        torch.manual_seed(int(words(1, "training", seed, round_number)[0] >> np.uint64(1)))
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
