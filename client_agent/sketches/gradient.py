"""A client's sanitized gradient sketch, from which the coordinator computes relevance.

FedMosaic, arXiv 2506.11024, "SimGrad"; docs/explanation/relevance.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Self, cast

import numpy as np
import safetensors.numpy
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as nnf

from client_agent.adapters.base import require_bare
from client_agent.errors import SketchUnusable
from client_agent.model.examples import Example, encode_beginnings, probe_set
from client_agent.model.forward import LOGITS_AT_ONCE, hidden_states
from client_agent.model.loading import BaseModel
from client_agent.model.tokens import NO_TARGET, Batch, by_token, collate, pad_id
from client_agent.privacy.release import MeanRelease
from schemas.maths.seeded_random import stream
from schemas.messages.federations import Role, SignaturePlan

Vector = NDArray[np.float32]
ENTRIES_AT_ONCE = 1 << 20
_LEAST_RELIABILITY = 1e-3  # the estimate of a small reliability may be negative
_LAST_ROLES: tuple[Role, ...] = ("down", "o")
MAX_LENGTH = 512  # tokens per example, or the model's context if it is shorter


@dataclass(frozen=True, slots=True)
class Sketch:
    """A gradient sketch: `vector` (dim,) float32.

    `reliability` in (0, 1] is the share of its squared norm that is not noise; 1 if unknown. `released` is
    the private mean that it was computed from, with differential privacy.
    """

    vector: Vector
    reliability: float
    released: MeanRelease | None = None

    @property
    def epsilon(self) -> float | None:
        """Return the privacy cost of all sketches of the silo so far; None without differential privacy."""
        return self.released.epsilon if self.released is not None else None

    def to_bytes(self) -> bytes:
        tensors: dict[str, NDArray[Any]] = {"vector": self.vector, "reliability": np.array(self.reliability)}
        return safetensors.numpy.save(tensors | (self.released.tensors() if self.released else {}))

    @classmethod
    def from_bytes(cls, content: bytes) -> Self:
        tensors = safetensors.numpy.load(content)
        return cls(tensors["vector"], float(tensors["reliability"]), MeanRelease.of(tensors))


def sketch_of(
    base: BaseModel, examples: Sequence[Example], plan: SignaturePlan, *, batch_size: int = 8
) -> Sketch:
    """Compute the sketch of a client's examples: (plan.dim,) float32, of norm `plan.clip` at most.

    The probe set of `plan.probe_examples` is the same in every round. `base` is the shared small model.

    Raises:
        SketchUnusable: the result is zero or not finite.
        AdapterInPlace: the model carries an adapter.
    """
    length = min(MAX_LENGTH, base.positions)
    texts = encode_beginnings(base, probe_set(examples, plan.probe_examples), length)
    batches = [
        collate(texts[start : start + batch_size], pad=pad_id(base.tokenizer)).to(base.device)
        for start in range(0, len(texts), batch_size)
    ]
    if not batches:
        raise SketchUnusable("there is no example to compute a sketch from; add training data to the silo")
    mean, reliability = _mean_gradient(base, batches, plan.clip)
    return Sketch(clipped(require_direction(count_sketch(mean, plan.dim, plan.seed)), plan.clip), reliability)


def reliability_of(mean_square: float, square_of_mean: float, count: int) -> float:
    """Estimate the signal share of a mean of `count` vectors from E|g|^2 and |mean g|^2.

    An unbiased estimate of the noise in |mean g|^2 is (E|g|^2 - |mean g|^2) / (count - 1). The remaining
    share of |mean g|^2 is the expected cosine of two such means of independent samples of one task.
    """
    if count < 2 or square_of_mean == 0:
        return 1.0
    noise = (mean_square - square_of_mean) / (count - 1)
    return min(1.0, max(_LEAST_RELIABILITY, 1 - noise / square_of_mean))


def ema(previous: Sketch, new: Sketch, a: float) -> Sketch:
    """Smooth over rounds: s <- (1 - a) s + a g. Both have the same reliability, since the probe set is fixed.

    Raises:
        SketchUnusable: the result is zero or not finite, or the two have different lengths.
    """
    if previous.vector.shape != new.vector.shape:
        raise SketchUnusable(
            f"the last sketch has {previous.vector.size} numbers and this one {new.vector.size}: the plan "
            "changed; remove the old round's folder to start again"
        )
    smoothed = ((1 - a) * previous.vector + a * new.vector).astype(np.float32)
    return Sketch(require_direction(smoothed), new.reliability)


def count_sketch(matrix: NDArray[np.float32], dim: int, seed: int) -> Vector:
    """Count-sketch a matrix to `dim` numbers: add each entry, times its sign, to its bucket.

    Buckets and signs follow from the seed and the entry's position by integer arithmetic, and are equal on
    every machine. Inner products are preserved in expectation, with a cosine error of about 1/sqrt(dim)
    (Charikar, Chen, Farach-Colton 2002). O(entries) time and O(1) memory beside the matrix.
    """
    hashes = stream("sketch", seed)
    entries = np.ascontiguousarray(matrix).reshape(-1)
    sums = np.zeros(dim)
    for start in range(0, entries.size, ENTRIES_AT_ONCE):
        # In parts, which need a fixed amount of memory beside the matrix, and in float64: millions of entries
        # share a bucket.
        part = entries[start : start + ENTRIES_AT_ONCE].astype(np.float64)
        bucket, sign = buckets_and_signs(hashes, part.size, dim)
        sums += np.bincount(bucket, weights=part * sign, minlength=dim)
    return sums.astype(np.float32)


def buckets_and_signs(
    hashes: np.random.Philox, count: int, dim: int
) -> tuple[NDArray[np.intp], NDArray[np.float64]]:
    word = np.asarray(hashes.random_raw(count), dtype=np.uint64)
    # Multiply and shift, without the bias and the cost of a remainder.
    bucket = ((word >> np.uint64(32)) * np.uint64(dim)) >> np.uint64(32)
    return bucket.astype(np.intp), (word & np.uint64(1)).astype(np.float64) * 2 - 1


def clipped(vector: Vector, limit: float) -> Vector:
    norm = float(np.linalg.norm(vector.astype(np.float64)))
    return vector if norm <= limit else (vector * (limit / norm)).astype(np.float32)


def require_direction(vector: Vector) -> Vector:
    """Return the vector if it has a direction.

    Raises:
        SketchUnusable: the vector is zero, or not finite.
    """
    if not np.isfinite(vector).all():
        raise SketchUnusable("the sketch is not finite; load the shared model in float32 or bfloat16")
    if not vector.any():
        raise SketchUnusable(
            "the sketch is zero: the shared model predicts these answers perfectly or not at all; "
            "check that the examples are what the model should learn"
        )
    return vector


def last_block_gradient(base: BaseModel, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
    """Factor the gradient of the summed loss with respect to the last layer's output weight (d_out, d_in).

    That is the weight of `down`, or of `o` where the last feed-forward layer is routed. Return g (m, d), u
    (m, d_in) and each of the m answer tokens' row in the batch (m,); dW = g^T u, with u the input of the
    linear layer and g the gradient at its output. No later position attends to that output, so that the
    gradient at a position depends on its token only, and the layers below it need no backward pass.

    Raises:
        SketchUnusable: the last layer has neither role.
    """
    is_answer = batch.targets != NO_TARGET  # (n, t)
    last = base.parts.roles[-1]
    role = next((role for role in _LAST_ROLES if role in last), None)
    if role is None:
        raise SketchUnusable(
            f"the last layer of {base.slug} has no linear layer of role down or o to take gradients of; the "
            "operator must name another signature.model"
        )
    linear = base.model.get_submodule(last[role].path)
    # The graph begins at the output of this layer, so that no layer below keeps tensors for a backward pass.
    with _captured_input(linear) as inputs, _graph_from_output(linear) as cut, torch.enable_grad():
        hidden = hidden_states(base, batch)[is_answer]  # (m, d)
        (g,) = torch.autograd.grad(hidden, cut, _gradient_of_hidden(base, hidden, batch.targets[is_answer]))
    rows = torch.arange(len(is_answer), device=is_answer.device)[:, None].expand_as(is_answer)  # (n, t)
    g, u = (by_token(tensor, batch)[is_answer].float() for tensor in (g, inputs[0].detach()))
    return g, u, rows[is_answer]


def _gradient_of_hidden(base: BaseModel, hidden: Tensor, targets: Tensor) -> Tensor:
    """Return the gradient of the summed loss with respect to hidden states (m, d), in parts."""
    gradients: list[Tensor] = []
    # The logits of all tokens together could need more memory than the model.
    rows = max(1, LOGITS_AT_ONCE // base.vocabulary)
    for part, expected in zip(torch.split(hidden.detach(), rows), torch.split(targets, rows), strict=True):
        leaf = part.requires_grad_()
        loss = nnf.cross_entropy(base.parts.logits(base.model, leaf).float(), expected, reduction="sum")
        gradients += torch.autograd.grad(loss, leaf)
    return torch.cat(gradients)


def _mean_gradient(
    base: BaseModel, batches: Sequence[Batch], clip: float
) -> tuple[NDArray[np.float32], float]:
    """Average the gradients of the examples' mean losses, each clipped to `clip`.

    Return the average (d, d_ff) and its reliability.
    """
    require_bare(base)
    total: Tensor | None = None
    squares = 0.0
    count = 0
    for batch in batches:
        g, u, rows = last_block_gradient(base, batch)
        for row in range(len(batch.ids)):
            g_e, u_e = g[rows == row], u[rows == row]
            # The mean loss: a long answer must not weigh more than a short one.
            g_e = g_e / len(g_e)
            # By the Gram matrices of the factors, without the (d, d_ff) product.
            norm = ((g_e @ g_e.T) * (u_e @ u_e.T)).sum().clamp(min=0).sqrt()  # |g^T u|
            clipped_gradient = (g_e * (clip / norm).clamp(max=1)).T @ u_e  # (d, d_ff)
            total = clipped_gradient if total is None else total.add_(clipped_gradient)
            squares += norm.clamp(max=clip).item() ** 2
            count += 1
    mean = cast(Tensor, total).div_(count)
    return mean.cpu().numpy(), reliability_of(squares / count, mean.square().sum().item(), count)


@contextmanager
def _captured_input(module: nn.Module) -> Iterator[list[Tensor]]:
    inputs: list[Tensor] = []
    hook = module.register_forward_pre_hook(lambda _, arguments: inputs.append(arguments[0]))
    try:
        yield inputs
    finally:
        hook.remove()


@contextmanager
def _graph_from_output(module: nn.Module) -> Iterator[list[Tensor]]:
    outputs: list[Tensor] = []

    def cut(_: nn.Module, arguments: tuple[Tensor, ...], output: Tensor) -> Tensor:
        outputs.append(output.detach().requires_grad_())
        return outputs[-1]

    hook = module.register_forward_hook(cut)
    try:
        yield outputs
    finally:
        hook.remove()
