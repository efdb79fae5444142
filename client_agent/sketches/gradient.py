"""Sum a client's data up in a few numbers: a sanitized sketch of a gradient that every client can compute.

From it the coordinator tells who is relevant to whom (fedmosaic.md section 4; FedMosaic, arXiv 2506.11024,
"SimGrad" and "RepSim"). Knows no round, no adapter and no coordinator.
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
from client_agent.errors import SignatureUnusable
from client_agent.model.examples import Example, encode_all, probe_set
from client_agent.model.loading import BaseModel
from client_agent.model.tokens import NO_TARGET, Batch, answer_logits, collate, hidden_states, pad_id
from client_agent.privacy.release import Averaged
from schemas.maths.seeded_random import stream
from schemas.messages.federations import SignaturePlan

Vector = NDArray[np.float32]
ENTRIES_AT_ONCE = 1 << 20
_LEAST_RELIABILITY = 1e-3  # the estimate of a small one may fall below 0
MAX_LENGTH = 512  # tokens of an example that are read, where the model reads as many


@dataclass(frozen=True, slots=True)
class Signature:
    """What the coordinator compares: `vector` (dim,) float32.

    `reliability` in (0, 1] is the share of its squared length that is not noise; 1 if unknown. `released` is
    what it was made from, with differential privacy.
    """

    vector: Vector
    reliability: float
    released: Averaged | None = None

    @property
    def epsilon(self) -> float | None:
        """What this and all earlier signatures of the silo have cost; None without differential privacy."""
        return self.released.epsilon if self.released is not None else None

    def to_bytes(self) -> bytes:
        """Write it as safetensors."""
        tensors: dict[str, NDArray[Any]] = {"vector": self.vector, "reliability": np.array(self.reliability)}
        return safetensors.numpy.save(tensors | (self.released.tensors() if self.released else {}))

    @classmethod
    def from_bytes(cls, content: bytes) -> Self:
        """Read what `to_bytes` wrote."""
        tensors = safetensors.numpy.load(content)
        return cls(tensors["vector"], float(tensors["reliability"]), Averaged.of(tensors))


def sketch_of(
    base: BaseModel, examples: Sequence[Example], plan: SignaturePlan, *, batch_size: int = 8
) -> Signature:
    """Compute the signature of examples: (plan.dim,) float32, at most `plan.clip` long.

    A fixed probe set of `plan.probe_examples` is read, the same in every round.
    Kind `gradient`: `base` is the shared small model, bare, and the examples are the client's own.
    Kind `representation`: `base` is the client's model, adapter in place, and the examples are shared ones.

    Raises:
        SignatureUnusable: the result is zero or not finite.
        AdapterInPlace: a gradient is asked for and the model is not bare.
    """
    length = min(MAX_LENGTH, base.positions)
    texts = encode_all(probe_set(examples, plan.probe_examples), base.tokenizer, length)
    batches = [
        collate(texts[start : start + batch_size], pad=pad_id(base.tokenizer)).to(base.device)
        for start in range(0, len(texts), batch_size)
    ]
    if not batches:
        raise SignatureUnusable("no example to compute a signature from; give the silo some training data")
    if plan.kind == "gradient":
        mean, reliability = _mean_gradient(base, batches, plan.clip)
    else:
        mean, reliability = _mean_representation(base, batches), 1.0
    return Signature(clipped(checked(sketch(mean, plan.dim, plan.seed)), plan.clip), reliability)


def reliability_of(mean_square: float, square_of_mean: float, count: int) -> float:
    """Estimate how much of a mean of `count` vectors is signal, from E|g|^2 and |mean g|^2.

    The noise in |mean g|^2 is (E|g|^2 - |mean g|^2) / (count - 1), without bias. What is left of the square,
    as a share of it, is the expected cosine of two such means of independent samples of one task.
    """
    if count < 2 or square_of_mean == 0:
        return 1.0
    noise = (mean_square - square_of_mean) / (count - 1)
    return min(1.0, max(_LEAST_RELIABILITY, 1 - noise / square_of_mean))


def ema(previous: Signature, new: Signature, a: float) -> Signature:
    """Smooth over rounds: s <- (1 - a) s + a g. Of one probe set, both are equally reliable.

    Raises:
        SignatureUnusable: the result is zero or not finite, or the two have different lengths.
    """
    if previous.vector.shape != new.vector.shape:
        raise SignatureUnusable(
            f"the last signature has {previous.vector.size} numbers and this one {new.vector.size}: the plan "
            "changed; remove the old round's folder to start afresh"
        )
    smoothed = ((1 - a) * previous.vector + a * new.vector).astype(np.float32)
    return Signature(checked(smoothed), new.reliability)


def sketch(matrix: NDArray[np.float32], dim: int, seed: int) -> Vector:
    """Count-sketch a matrix to `dim` numbers: each entry is added, with its sign, to its bucket.

    Buckets and signs follow from the seed and the entry's position, by integer arithmetic alone: the same on
    every machine. Inner products are kept in the mean, with a cosine error of about 1/sqrt(dim) (Charikar,
    Chen, Farach-Colton 2002). O(entries) time and O(1) memory beside the matrix.
    """
    hashes = stream("sketch", seed)
    entries = np.ascontiguousarray(matrix).reshape(-1)
    sums = np.zeros(dim)
    for start in range(0, entries.size, ENTRIES_AT_ONCE):
        part = entries[start : start + ENTRIES_AT_ONCE].astype(np.float64)
        bucket, sign = hashed(hashes, part.size, dim)
        sums += np.bincount(bucket, weights=part * sign, minlength=dim)
    return sums.astype(np.float32)


def hashed(hashes: np.random.Philox, count: int, dim: int) -> tuple[NDArray[np.intp], NDArray[np.float64]]:
    """Give the buckets and signs of a sketch's next `count` entries: (count,) each."""
    word = np.asarray(hashes.random_raw(count), dtype=np.uint64)
    bucket = ((word >> np.uint64(32)) * np.uint64(dim)) >> np.uint64(32)
    return bucket.astype(np.intp), (word & np.uint64(1)).astype(np.float64) * 2 - 1


def clipped(vector: Vector, limit: float) -> Vector:
    """Scale down to an L2 norm of `limit` at most."""
    norm = float(np.linalg.norm(vector.astype(np.float64)))
    return vector if norm <= limit else (vector * (limit / norm)).astype(np.float32)


def checked(signature: Vector) -> Vector:
    """Refuse a signature without a direction.

    Raises:
        SignatureUnusable: it is zero, or not finite.
    """
    if not np.isfinite(signature).all():
        raise SignatureUnusable("the signature is not finite; load the shared model in float32 or bfloat16")
    if not signature.any():
        raise SignatureUnusable(
            "the signature is zero: the shared model predicts these answers perfectly or not at all; "
            "check that the examples are what the model should learn"
        )
    return signature


def last_block_gradient(base: BaseModel, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
    """Factor the gradient of the summed loss with respect to the last block's `down` weight (d_out, d_in).

    Returns g (m, d), u (m, d_ff) and the row (m,) of the batch that each of the m answer tokens is in;
    dW = g^T u, with u the input of `down` and g the gradient at its output (fedmosaic.md section 4).
    """
    wanted = batch.targets != NO_TARGET  # (n, t)
    g, u = (_closed_form if base.parts.closed_form else _from_the_top)(base, batch)
    rows = torch.arange(len(wanted), device=wanted.device)[:, None].expand_as(wanted)[wanted]  # (m,)
    return g, u, rows


@torch.no_grad()
def _closed_form(base: BaseModel, batch: Batch) -> tuple[Tensor, Tensor]:
    """Give g (m, d) and u (m, d_ff) without a backward pass.

        delta = softmax(logits) - onehot         g_n = delta W_lmhead
        g = s (w * g_n) - h s^3/d <w * g_n, h>   s = 1/sqrt(mean(h^2) + eps), the exact RMSNorm Jacobian

    with h the input of the final norm. The one-hot is never built.
    """
    wanted = batch.targets != NO_TARGET  # (n, t)
    norm = cast(Any, base.model.get_submodule(base.parts.norm))
    head = cast(Any, base.model.get_submodule(base.parts.head))
    down = base.parts.linear(base.model, base.layers - 1, "down")
    with _inputs_of(norm, down) as seen:
        normed = hidden_states(base.model, base.parts, batch)[wanted]  # (m, d)
    h, u = (seen[module][wanted].float() for module in (norm, down))  # (m, d), (m, d_ff)
    delta = torch.softmax(head(normed).float(), dim=-1)  # (m, V)
    delta[torch.arange(len(delta), device=delta.device), batch.targets[wanted]] -= 1
    w = norm.weight.float()  # (d,)
    s = torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + norm.variance_epsilon)  # (m, 1)
    wg = w * (delta @ head.weight.float())  # (m, d)
    return s * wg - h * s**3 / h.shape[-1] * (wg * h).sum(-1, keepdim=True), u


def _from_the_top(base: BaseModel, batch: Batch) -> tuple[Tensor, Tensor]:
    """Give g (m, d) and u (m, d_ff) by autograd from the loss down to the output of `down`, and no further.

    No later position attends to that output, so the gradient at a position is its own token's.
    """
    wanted = batch.targets != NO_TARGET  # (n, t)
    down = base.parts.linear(base.model, base.layers - 1, "down")
    with _inputs_of(down) as seen, _cut_at(down) as cut, torch.enable_grad():
        logits, targets = answer_logits(base.model, base.parts, batch)
        loss = nnf.cross_entropy(logits, targets, reduction="sum")
        (g,) = torch.autograd.grad(loss, cut)
    return g[wanted].float(), seen[down][wanted].detach().float()


def _mean_gradient(
    base: BaseModel, batches: Sequence[Batch], clip: float
) -> tuple[NDArray[np.float32], float]:
    """Average over examples the gradient of each one's mean loss, each clipped to `clip`: (d, d_ff).

    With it comes the reliability of the average.
    """
    require_bare(base)
    total: Tensor | None = None
    squares = 0.0
    count = 0
    for batch in batches:
        g, u, rows = last_block_gradient(base, batch)
        for row in range(len(batch.ids)):
            g_e, u_e = g[rows == row], u[rows == row]
            g_e = g_e / len(g_e)
            norm = ((g_e @ g_e.T) * (u_e @ u_e.T)).sum().clamp(min=0).sqrt()  # |g^T u| without building it
            part = (g_e * (clip / norm).clamp(max=1)).T @ u_e  # (d, d_ff)
            total = part if total is None else total.add_(part)
            squares += norm.clamp(max=clip).item() ** 2
            count += 1
    mean = cast(Tensor, total).div_(count)
    return mean.cpu().numpy(), reliability_of(squares / count, mean.square().sum().item(), count)


@torch.no_grad()
def _mean_representation(base: BaseModel, batches: Sequence[Batch]) -> NDArray[np.float32]:
    """Average the last hidden state over all tokens, less the mean of its coordinates: (1, d)."""
    total = torch.zeros(base.hidden_size, device=base.device)
    for batch in batches:
        total += hidden_states(base.model, base.parts, batch)[batch.attention.bool()].float().sum(0)
    mean = total / sum(batch.tokens for batch in batches)
    return (mean - mean.mean())[None].cpu().numpy()


@contextmanager
def _inputs_of(*modules: nn.Module) -> Iterator[dict[nn.Module, Tensor]]:
    """Catch the first argument of the last call of each module."""
    seen: dict[nn.Module, Tensor] = {}

    def catch(module: nn.Module, arguments: tuple[Tensor, ...]) -> None:
        seen[module] = arguments[0]

    hooks = [module.register_forward_pre_hook(catch) for module in modules]
    try:
        yield seen
    finally:
        for hook in hooks:
            hook.remove()


@contextmanager
def _cut_at(module: nn.Module) -> Iterator[list[Tensor]]:
    """Let the graph begin at the output of a module: that output, of every call, is in the list."""
    outputs: list[Tensor] = []

    def cut(_: nn.Module, arguments: tuple[Tensor, ...], output: Tensor) -> Tensor:
        outputs.append(output.detach().requires_grad_())
        return outputs[-1]

    hook = module.register_forward_hook(cut)
    try:
        yield outputs
    finally:
        hook.remove()
