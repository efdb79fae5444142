"""Run a base model, with whatever adapter is in place, up to its hidden states or its answer's logits."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, cast

import torch
from torch import Tensor, nn

from client_agent.model.loading import BaseModel
from client_agent.model.tokens import NO_TARGET, Batch

TOKENS_PER_BATCH = 8192
"""Tokens of a batch without gradients, padding included.

The key-value cache of a generated batch is the largest part: .4 GiB for a model of 135 million parameters
(46 KiB per token), 4 GiB for 7 billion without grouped heads (512 KiB). A text longer than this is a batch of
its own.
"""
TOKENS_PER_PASS_ON_CPU = 512
"""Tokens of a batch without gradients and cache on a CPU, padding included.

Tensors of larger batches leave the processor's cache, and the allocator maps their memory anew in each layer.
"""
LOGITS_AT_ONCE = 2**25
"""Logits that are held at once, 128 MiB in float32: with 262,144 tokens in the vocabulary 128 positions."""


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Switch a model to evaluation, without dropout, and back to what it was."""
    was_training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(was_training)


def hidden_states(base: BaseModel, batch: Batch, *, masked: bool = True) -> Tensor:
    """Run the model up to its final norm, included: (n, t, d); see `FrozenPrefix` for the layers below.

    Args:
        masked: whether padding is masked. It need not be: it is on the right, where a causal model sees it
            from padding only.
    """
    decoder = cast(Callable[..., Any], base.model.get_submodule(base.parts.decoder))
    with base.prefix.in_place(base, batch):
        if batch.positions is None:
            mask = batch.attention if masked else torch.ones_like(batch.attention)
            output = decoder(input_ids=batch.ids, attention_mask=mask, use_cache=False)
        else:  # texts of a row are told apart by their positions, which a mask would override
            output = decoder(input_ids=batch.ids, position_ids=batch.positions, use_cache=False)
    return cast(Tensor, output.last_hidden_state)


def answer_logits(base: BaseModel, batch: Batch) -> tuple[Tensor, Tensor]:
    """Compute the logits (m, V) float32 of the m answer tokens of a batch, row by row, and their ids (m,).

    The head runs at these positions only, without an (n, t, V) tensor.
    """
    is_answer = batch.targets != NO_TARGET  # (n, t)
    hidden = hidden_states(base, batch)[is_answer]  # (m, d)
    return base.parts.logits(base.model, hidden).float(), batch.targets[is_answer]


def tokens_per_pass(device: torch.device) -> int:
    """Return the largest number of tokens of a forward pass without gradients and cache."""
    return TOKENS_PER_PASS_ON_CPU if device.type == "cpu" else TOKENS_PER_BATCH


def grouped_by_length(lengths: Sequence[int], budget: int = TOKENS_PER_BATCH) -> Iterator[list[int]]:
    """Yield groups of indices, longest texts first, whose padded size is at most `budget` where possible."""
    # Longest first: a batch that is too large fails at once, and neighbours need little padding.
    order = sorted(range(len(lengths)), key=lambda index: -lengths[index])
    start = 0
    while start < len(order):
        size = max(1, budget // max(1, lengths[order[start]]))
        yield order[start : start + size]
        start += size
