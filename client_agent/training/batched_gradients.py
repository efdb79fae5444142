"""Gradients of single examples, many in one forward and one backward pass.

Each text of a micro-batch gets trained tensors of its own: copies with one more dimension in front. Their
gradient is the gradient of each text, so that each is clipped and rounded by itself, as one that was computed
alone. The differential privacy of a step needs more: no gradient may depend on which other examples were
drawn, not even in rounding. Therefore

- the shape of a micro-batch follows from the text and from public numbers: a text's own length and number
  of answer tokens, each rounded up, and rows without a text where the sample has too few;
- there is no attention mask, whose presence would depend on the lengths of all texts; padding is on the
  right, where a causal model does not see it;
- texts are in random order, so that one more text moves at most one other.

What remains is a property of the machine's kernels: that they compute a row of a batch of one shape without
the values of other rows, and alike at each place. Before a round `batched_gradients` compares bits for each
shape (docs/decisions/0082-batched-private-gradients.md).
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import isqrt
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as nnf

from client_agent.adapters.layers import LoraLinear, PQLinear
from client_agent.errors import MissingGradient
from client_agent.model.forward import LOGITS_AT_ONCE, answer_logits, hidden_states
from client_agent.model.loading import BaseModel
from client_agent.model.tokens import NO_TARGET, Batch, TokenizedText, collate, pad_id
from schemas.messages.training import TrainingPlan

log = logging.getLogger(__name__)

Vector = NDArray[np.float32]
_LEAST_WIDTH = 16
_MOST_TOKENS, _MOST_ACTIVATIONS, _MOST_ON_GPU = 512, 2**17, 8192
"""The size of a micro-batch: tokens and tokens times hidden width on a CPU, tokens on a GPU.

With more, a CPU is hardly faster, and more rows have no text.
"""
_MOST_VALUES = 2**26
"""Gradients that are held at once, 256 MiB in float32."""
_MOST_IN_FLOAT32, _MOST_IN_FEWER_BITS = 1e-3, 0.2
"""The most by which the gradient of a text in a batch and alone may differ, as a share of its norm."""
_SHIFT = 0.01
"""The noise of trained tensors in the comparison: with B = 0 the gradient of A is zero in any order."""


@dataclass(frozen=True, slots=True, order=True)
class Shape:
    """The shape of a micro-batch: `rows` texts of `width` tokens, `answers` of which are predicted."""

    rows: int
    width: int
    answers: int


@dataclass(frozen=True, slots=True)
class BatchedGradients:
    """Computes the gradients of a sample's texts in micro-batches.

    Attributes:
        shapes: the shapes that were compared on this machine; other texts are computed alone.
        plan: the training plan, whose `max_length` and `batch_size` bound shapes.
    """

    shapes: frozenset[Shape]
    plan: TrainingPlan

    def divided(
        self, base: BaseModel, values: int, texts: Sequence[TokenizedText]
    ) -> tuple[list[tuple[Shape, list[TokenizedText]]], list[TokenizedText]]:
        """Divide a sample into micro-batches of one shape each, and texts that are computed alone.

        Args:
            values: the number of trained values.
            texts: in random order, as the order decides who is in which micro-batch.
        """
        by_shape: dict[Shape, list[TokenizedText]] = {}
        for text in texts:
            by_shape.setdefault(shape_of(text, base, values, self.plan), []).append(text)
        alone = [
            text for shape, same_shape in by_shape.items() if shape not in self.shapes for text in same_shape
        ]
        batches = [
            (shape, same_shape[start : start + shape.rows])
            for shape, same_shape in by_shape.items()
            if shape in self.shapes
            for start in range(0, len(same_shape), shape.rows)
        ]
        return batches, alone


def batched_gradients(
    base: BaseModel,
    parameters: Mapping[str, nn.Parameter],
    texts: Iterable[TokenizedText],
    plan: TrainingPlan,
) -> BatchedGradients | None:
    """Compare the shapes of a silo's texts on this machine; None if all gradients are to be computed alone.

    The base model is in evaluation mode: random dropout would differ between the compared passes. The texts
    of the comparison are random, and no values of the silo's texts are read.

    Args:
        texts: all texts that may be drawn.
    """
    if (reason := _obstacle(base, parameters)) is not None:
        log.warning("private training: gradients are computed one by one, as %s", reason)
        return None
    values = sum(parameter.numel() for parameter in parameters.values())
    shapes = {shape_of(text, base, values, plan) for text in texts}
    # By shape: whether one of them passes must not depend on texts of another.
    with base.prefix.set_aside():  # random texts are not stored
        compared = {shape: _difference(base, parameters, shape) for shape in sorted(shapes) if shape.rows > 1}
    for shape, difference in compared.items():
        if difference is not None:
            log.warning(
                "private training: gradients of texts of up to %d tokens are computed one by one, as %s",
                shape.width,
                difference,
            )
    passed = frozenset(shape for shape, difference in compared.items() if difference is None)
    return BatchedGradients(passed, plan) if passed else None


def shape_of(text: TokenizedText, base: BaseModel, values: int, plan: TrainingPlan) -> Shape:
    """Return the shape of a text's micro-batch, from the text and public numbers alone.

    Args:
        values: the number of trained values.
    """
    length = max(_LEAST_WIDTH, len(text.ids))
    step = 1 << max(2, (length - 1).bit_length() - 3)  # widths of 16, 20, 24, 28, 32, 40, 48, 56, 64, 80 ...
    width = max(len(text.ids), min(-(-length // step) * step, plan.max_length))
    # Two numbers of answer tokens for each width: more would leave more rows without a text.
    answers = width // 4 if sum(text.answer[1:]) <= width // 4 else width
    on_cpu = min(_MOST_TOKENS, _MOST_ACTIVATIONS // base.hidden_size)
    tokens = min(on_cpu if base.device.type == "cpu" else _MOST_ON_GPU, plan.batch_size * plan.max_length)
    drawn = plan.batch_size * plan.accumulation
    rows = min(
        tokens // width,
        drawn + isqrt(drawn),  # a sample of equal texts fits in one micro-batch most of the time
        _MOST_VALUES // values,
        LOGITS_AT_ONCE // (answers * base.vocabulary),
    )
    return Shape(max(1, rows), width, answers)


def gradients_of_texts(
    base: BaseModel, parameters: Mapping[str, nn.Parameter], shape: Shape, texts: Sequence[TokenizedText]
) -> Iterator[tuple[float, Vector]]:
    """Yield the mean loss of each text in nats per answer token, and its gradient (values,).

    Args:
        parameters: the trained tensors, whose gradients are not touched.
        texts: at most `shape.rows`, all of this shape.

    Raises:
        MissingGradient: there is no parameter, or one has no gradient.
    """
    values = [parameter.detach() for parameter in parameters.values()]
    losses, gradients = _passed(base, parameters, values, shape, texts)
    for row, loss in enumerate(losses[: len(texts)].tolist()):
        yield loss, gradients[row].cpu().numpy()


def _passed(
    base: BaseModel,
    parameters: Mapping[str, nn.Parameter],
    values: Sequence[Tensor],
    shape: Shape,
    texts: Sequence[TokenizedText],
) -> tuple[Tensor, Tensor]:
    """Return the losses (rows,) and gradients (rows, values) of a micro-batch, at these values."""
    names = _names(base.model)
    leaves = {
        f"model.{names[id(parameter)]}": value.expand(shape.rows, *value.shape).requires_grad_()
        for parameter, value in zip(parameters.values(), values, strict=True)
    }
    # A row without a text has one token that is not learnt.
    empty = TokenizedText((pad_id(base.tokenizer),), (False,), ())
    rows = [*texts, *[empty] * (shape.rows - len(texts))]
    batch = collate(rows, pad=pad_id(base.tokenizer), length=shape.width).to(base.device)
    losses, gradients = cast(
        tuple[Tensor, Sequence[Tensor | None]],
        torch.func.functional_call(_Passes(base), leaves, (batch, shape, leaves), tie_weights=False),
    )
    # By name and without any value, as for gradients that are computed alone.
    without = [name for name, gradient in zip(parameters, gradients, strict=True) if gradient is None]
    if without or not gradients:
        raise MissingGradient(
            f"no gradient reaches {', '.join(without[:3]) or 'anything'} ({len(without)} of {len(gradients)} "
            "parameters); check that the adapter is in place and the base model is differentiable"
        )
    flat = [cast(Tensor, gradient).reshape(shape.rows, -1).float() for gradient in gradients]
    return losses, torch.cat(flat, dim=1)


class _Passes(nn.Module):
    """Both passes of a micro-batch: checkpointed layers read the replaced tensors in both."""

    def __init__(self, base: BaseModel) -> None:
        super().__init__()
        self.model = base.model
        self._base = base

    def forward(
        self, batch: Batch, shape: Shape, leaves: Mapping[str, Tensor]
    ) -> tuple[Tensor, Sequence[Tensor | None]]:
        base = self._base
        with torch.autocast(base.device.type, dtype=torch.bfloat16, enabled=base.device.type == "cuda"):
            losses = _losses(base, batch, shape.answers)
        if not losses.requires_grad:
            return losses, [None] * len(leaves)
        gradients = torch.autograd.grad(
            losses, list(leaves.values()), grad_outputs=torch.ones_like(losses), allow_unused=True
        )
        return losses.detach(), gradients


def _losses(base: BaseModel, batch: Batch, answers: int) -> Tensor:
    """Return the mean loss of the answer tokens of each row: (rows,) float32."""
    is_answer = batch.targets != NO_TARGET  # (n, t)
    # Positions of answers first, in order; the same number for each row, so that no row changes the shape.
    positions = torch.argsort((~is_answer).long(), dim=1, stable=True)[:, :answers]
    hidden = hidden_states(base, batch, masked=False)  # (n, t, d)
    chosen = hidden.gather(1, positions.unsqueeze(-1).expand(-1, -1, hidden.shape[-1]))
    logits = base.parts.logits(base.model, chosen).float()  # (n, a, V)
    targets = batch.targets.gather(1, positions)
    token_losses = nnf.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none")
    return token_losses.view(targets.shape).sum(dim=1) / is_answer.sum(dim=1).clamp(min=1)


def _names(model: nn.Module) -> dict[int, str]:
    """Return the names of the parameters of layers that take one value for each text, by identity."""
    return {
        id(parameter): f"{path}.{name}"
        for path, module in model.named_modules()
        if isinstance(module, LoraLinear | PQLinear)
        for name, parameter in module.named_parameters()
        if not name.startswith("base_layer.")
    }


def _obstacle(base: BaseModel, parameters: Mapping[str, nn.Parameter]) -> str | None:
    """Return why no micro-batch keeps texts apart; None if shapes decide."""
    if base.parts.frozen.expert_layers:
        return "routed experts read the tokens of all texts together"
    if getattr(base.model, "is_loaded_in_8bit", False):
        return "products in 8 bits treat columns with an outlier in any text apart"
    names = _names(base.model)
    unsupported = [name for name, parameter in parameters.items() if id(parameter) not in names]
    if unsupported:
        return f"{unsupported[0]} belongs to a layer without gradients of single texts"
    return None


def _difference(base: BaseModel, parameters: Mapping[str, nn.Parameter], shape: Shape) -> str | None:
    """Return what depends on the other texts of a micro-batch of this shape; None if nothing was found."""
    draw = np.random.default_rng(0)
    generator = torch.Generator().manual_seed(0)
    values = [
        parameter.detach()
        + _SHIFT * torch.randn(parameter.shape, generator=generator).to(parameter.device, parameter.dtype)
        for parameter in parameters.values()
    ]
    first, second = ([_random_text(base, shape, draw) for _ in range(shape.rows)] for _ in range(2))
    moved = first[: (shape.rows + 1) // 2][::-1]
    staying = first[len(first) // 2 :]
    _, in_place = _passed(base, parameters, values, shape, first)
    # At other places, after other texts; and at their places, after rows without a text.
    _, elsewhere = _passed(base, parameters, values, shape, [*second[: shape.rows - len(moved)], *moved])
    empty = TokenizedText((pad_id(base.tokenizer),), (False,), ())
    _, beside_empty = _passed(
        base, parameters, values, shape, [*[empty] * (shape.rows - len(staying)), *staying]
    )
    if not torch.equal(elsewhere[-len(moved) :].flip(0), in_place[: len(moved)]):
        return "the bits of a text's gradient depend on its place or on other texts on this machine"
    if not torch.equal(beside_empty[-len(staying) :], in_place[-len(staying) :]):
        return "the bits of a text's gradient depend on other texts on this machine"
    single = _alone(base, parameters, values, first[0])
    limit = _MOST_IN_FLOAT32 if base.model.dtype == torch.float32 else _MOST_IN_FEWER_BITS
    # `not <`, so that NaN is refused as well.
    if not float((in_place[0] - single).norm()) < limit * float(single.norm()):
        return "the gradient of a text is another one in a batch"
    return None


def _alone(
    base: BaseModel, parameters: Mapping[str, nn.Parameter], values: Sequence[Tensor], text: TokenizedText
) -> Tensor:
    """Return the gradient of a text in a batch of its own, at these values: (values,)."""
    former_values = [parameter.detach().clone() for parameter in parameters.values()]
    with torch.no_grad():
        for parameter, value in zip(parameters.values(), values, strict=True):
            parameter.copy_(value)
    try:
        batch = collate([text], pad=pad_id(base.tokenizer)).to(base.device)
        with torch.autocast(base.device.type, dtype=torch.bfloat16, enabled=base.device.type == "cuda"):
            loss = nnf.cross_entropy(*answer_logits(base, batch))
        gradients: Sequence[Any] = torch.autograd.grad(loss, list(parameters.values()))
    finally:
        with torch.no_grad():
            for parameter, value in zip(parameters.values(), former_values, strict=True):
                parameter.copy_(value)
    return torch.cat([gradient.reshape(-1).float() for gradient in gradients])


def _random_text(base: BaseModel, shape: Shape, draw: np.random.Generator) -> TokenizedText:
    """Return a text of random tokens that fills more than half of a row."""
    length = int(draw.integers(max(2, shape.width // 2), shape.width + 1))
    answers = min(length - 1, shape.answers)
    answers = int(draw.integers(max(1, answers // 2), answers + 1))
    ids = tuple(int(i) for i in draw.integers(0, base.vocabulary, length))
    return TokenizedText(ids, (False,) * (length - answers) + (True,) * answers, ())
