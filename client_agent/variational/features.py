"""Sum a client's examples up in 2 L numbers that only its own modulator reads. Knows no importance."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
from torch import Tensor
from torch.nn import functional as nnf

from client_agent.model.examples import Example, encode_for, probe_set
from client_agent.model.loading import BaseModel
from client_agent.model.tokens import Batch, collate, pad_id

_EXAMPLES = 32
_AT_ONCE = 8


@torch.no_grad()
def mean_feature(base: BaseModel, examples: Sequence[Example], max_length: int) -> Tensor:
    """Average over a fixed set of examples the layer-normalised mean and std of each layer: (2 L,) float32.

    Mean and std are over the last token's hidden state (d,) as the layer leaves it, adapter included.

    Raises:
        TextTooLong: an example has more tokens than the base model reads.
    """
    texts = encode_for(base, probe_set(examples, _EXAMPLES), max_length)
    total = torch.zeros(2 * base.layers, device=base.device)
    for start in range(0, len(texts), _AT_ONCE):
        batch = collate(texts[start : start + _AT_ONCE], pad=pad_id(base.tokenizer)).to(base.device)
        total += nnf.layer_norm(_spread(base, batch), (2 * base.layers,)).sum(0)
    return total / max(1, len(texts))


def _spread(base: BaseModel, batch: Batch) -> Tensor:
    """Give mean and std of the last token's hidden state, layer by layer: (n, 2 L)."""
    decoder = cast(Callable[..., Any], base.model.get_submodule(base.parts.decoder))
    output = decoder(
        input_ids=batch.ids, attention_mask=batch.attention, use_cache=False, output_hidden_states=True
    )
    rows, last = torch.arange(len(batch.ids), device=batch.ids.device), batch.attention.sum(1) - 1
    layers = [states[rows, last].float() for states in output.hidden_states[1:]]  # L times (n, d)
    return torch.cat(
        [torch.stack([one.mean(-1) for one in layers], 1), torch.stack([one.std(-1) for one in layers], 1)], 1
    )
