"""Sum a client's data up in a few numbers: a sanitized sketch of a gradient that every client can compute.

From it the coordinator tells who is relevant to whom (fedmosaic.md section 4; FedMosaic, arXiv 2506.11024,
"SimGrad" and "RepSim"). Knows no round, no adapter and no coordinator.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from client_agent.errors import SignatureUnusable
from client_agent.model.adapter import require_bare
from client_agent.model.draws import stream
from client_agent.model.examples import Example, encode_all, probe_set
from client_agent.model.loading import BaseModel
from client_agent.model.tokens import NO_TARGET, Batch, collate, hidden_states, pad_id
from schemas.messages.federations import SignaturePlan

Vector = NDArray[np.float32]
_ENTRIES_AT_ONCE = 1 << 20
_MAX_LENGTH = 512  # tokens of an example that are read


def sketch_of(
    base: BaseModel, examples: Sequence[Example], plan: SignaturePlan, *, batch_size: int = 8
) -> Vector:
    """Compute the signature of examples: (plan.dim,) float32, at most `plan.clip` long.

    A fixed probe set of `plan.probe_examples` is read, the same in every round.
    Kind `gradient`: `base` is the shared small model, bare, and the examples are the client's own.
    Kind `representation`: `base` is the client's model, adapter in place, and the examples are shared ones.

    Raises:
        SignatureUnusable: the result is zero or not finite.
        AdapterInPlace: a gradient is asked for and the model is not bare.
    """
    texts = encode_all(probe_set(examples, plan.probe_examples), base.tokenizer, _MAX_LENGTH)
    batches = [
        collate(texts[start : start + batch_size], pad=pad_id(base.tokenizer)).to(base.device)
        for start in range(0, len(texts), batch_size)
    ]
    if not batches:
        raise SignatureUnusable("no example to compute a signature from; give the silo some training data")
    if plan.kind == "gradient":
        signature = sketch(_mean_gradient(base, batches, plan.clip), plan.dim, plan.seed)
    else:
        signature = sketch(_mean_representation(base, batches), plan.dim, plan.seed)
    return clipped(checked(signature), plan.clip)


def ema(previous: Vector, new: Vector, a: float) -> Vector:
    """Smooth over rounds: s <- (1 - a) s + a g.

    Raises:
        SignatureUnusable: the result is zero or not finite, or the two have different lengths.
    """
    if previous.shape != new.shape:
        raise SignatureUnusable(
            f"the last signature has {previous.size} numbers and this one {new.size}: the plan changed; "
            "remove the old round's folder to start afresh"
        )
    return checked(((1 - a) * previous + a * new).astype(np.float32))


def sketch(matrix: NDArray[np.float32], dim: int, seed: int) -> Vector:
    """Count-sketch a matrix to `dim` numbers: each entry is added, with its sign, to its bucket.

    Buckets and signs follow from the seed and the entry's position, by integer arithmetic alone: the same on
    every machine. Inner products are kept in the mean, with a cosine error of about 1/sqrt(dim) (Charikar,
    Chen, Farach-Colton 2002). O(entries) time and O(1) memory beside the matrix.
    """
    hashes = stream("sketch", seed)
    entries = np.ascontiguousarray(matrix).reshape(-1)
    sums = np.zeros(dim)
    for start in range(0, entries.size, _ENTRIES_AT_ONCE):
        part = entries[start : start + _ENTRIES_AT_ONCE].astype(np.float64)
        word = np.asarray(hashes.random_raw(part.size), dtype=np.uint64)
        bucket = ((word >> np.uint64(32)) * np.uint64(dim)) >> np.uint64(32)
        part[(word & np.uint64(1)) == 0] *= -1
        sums += np.bincount(bucket.astype(np.intp), weights=part, minlength=dim)
    return sums.astype(np.float32)


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
    """Factor the gradient of the summed loss with respect to the last block's down_proj weight.

    Returns g (m, d), u (m, d_ff) and the row (m,) of the batch that each of the m answer tokens is in;
    dW = g^T u. In closed form, without a backward pass (fedmosaic.md section 4):
        delta = softmax(logits) - onehot         g_n = delta W_lmhead
        g = s (w * g_n) - h s^3/d <w * g_n, h>   s = 1/sqrt(mean(h^2) + eps), the exact RMSNorm Jacobian
    with h the input of the final norm and u the input of down_proj. The one-hot is never built.
    """
    wanted = batch.targets != NO_TARGET  # (n, t)
    norm = cast(Any, base.model.get_submodule(base.parts.norm))
    head = cast(Any, base.model.get_submodule(base.parts.head))
    down = base.parts.linear(base.model, base.layers - 1, "down")
    with torch.no_grad(), _inputs_of(norm, down) as seen:
        normed = hidden_states(base.model, base.parts, batch)[wanted]  # (m, d)
        h, u = (seen[module][wanted].float() for module in (norm, down))  # (m, d), (m, d_ff)
        delta = torch.softmax(head(normed).float(), dim=-1)  # (m, V)
        delta[torch.arange(len(delta), device=delta.device), batch.targets[wanted]] -= 1
        w = norm.weight.float()  # (d,)
        s = torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + norm.variance_epsilon)  # (m, 1)
        wg = w * (delta @ head.weight.float())  # (m, d)
        g = s * wg - h * s**3 / h.shape[-1] * (wg * h).sum(-1, keepdim=True)  # (m, d)
    rows = torch.arange(len(wanted), device=wanted.device)[:, None].expand_as(wanted)[wanted]  # (m,)
    return g, u, rows


def _mean_gradient(base: BaseModel, batches: Sequence[Batch], clip: float) -> NDArray[np.float32]:
    """Average over examples the gradient of each one's mean loss, each clipped to `clip`: (d, d_ff)."""
    require_bare(base)
    total: Tensor | None = None
    count = 0
    for batch in batches:
        g, u, rows = last_block_gradient(base, batch)
        for row in range(len(batch.ids)):
            g_e, u_e = g[rows == row], u[rows == row]
            g_e = g_e / len(g_e)
            norm = ((g_e @ g_e.T) * (u_e @ u_e.T)).sum().clamp(min=0).sqrt()  # |g^T u| without building it
            part = (g_e * (clip / norm).clamp(max=1)).T @ u_e  # (d, d_ff)
            total = part if total is None else total.add_(part)
            count += 1
    return cast(Tensor, total).div_(count).cpu().numpy()


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
