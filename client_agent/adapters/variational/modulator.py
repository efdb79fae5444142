"""Turn a client's mean feature into a prior of its own: random Fourier features and a small network.

Nothing of it travels. One client gives one feature, so that a common network would have as many points to
learn from as there are clients, for more bytes than the posterior it explains. Knows no model and no file.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import sqrt
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as nnf

from client_agent.adapters.variational.posterior import positive, raw_of
from client_agent.model.examples import Example, encode_for, probe_set
from client_agent.model.loading import BaseModel
from client_agent.model.tokens import Batch, collate, pad_id
from schemas.maths.seeded_random import Key, uniform

_WIDTH = 32


def frequencies(inputs: int, features: int, seed: int) -> Tensor:
    """Draw W (inputs, features / 2), normal with variance 1 / inputs; fixed, and the same for all clients.

    Two features of unit variance in every number have |h - h'|^2 of about 2 inputs, so that their kernel
    exp(-|h - h'|^2 / (2 inputs)) is about 1/e.
    """
    shape = (inputs, features // 2)
    first, second = uniform((2, inputs * shape[1]), 1.0, "frequencies", seed).astype(np.float64)
    radius = np.sqrt(-2 * np.log(np.maximum((1 + first) / 2, 2.0**-53)))  # Box and Muller 1958
    normal = (radius * np.cos(np.pi * second)).astype(np.float32).reshape(shape)
    return torch.from_numpy(normal / np.float32(sqrt(inputs)))


def fourier(feature: Tensor, frequencies: Tensor) -> Tensor:
    """z = sqrt(2/D) [cos(h W), sin(h W)] (D,), of length 1 (Rahimi and Recht 2007)."""
    turned = feature @ frequencies  # (D / 2,)
    return torch.cat([torch.cos(turned), torch.sin(turned)]) / sqrt(len(turned))


def pooled(server: Tensor, personal: Tensor) -> Tensor:
    """Pool two Gamma priors (2, M, r) evenly: the geometric mean of their densities, made to integrate to 1.

    Its shape and rate are the means of theirs, and its mean (a_g + alpha) / (b_g + beta) weighs the two means
    by their rates: a Gamma's rate counts the observations that it stands for.
    """
    return (server + personal) / 2


class Modulator(nn.Module):
    """A network from z (D,) to the client's own prior (alpha, beta): (2, M, r), near 1 at the start."""

    def __init__(self, features: int, modules: int, rank: int, *, seed: int) -> None:
        super().__init__()
        outputs = 2 * modules * rank
        self._shape = (2, modules, rank)
        self.hidden_weight = nn.Parameter(_drawn((_WIDTH, features), 1.0, "hidden", seed))
        self.hidden_bias = nn.Parameter(torch.zeros(_WIDTH))
        self.weight = nn.Parameter(_drawn((outputs, _WIDTH), 0.1, "outputs", seed))
        self.bias = nn.Parameter(raw_of(torch.ones(outputs)))

    def forward(self, z: Tensor) -> Tensor:
        """(alpha, beta) = eps + softplus(W' tanh(W z + c) + c'); tanh, since a ReLU at z may be dead."""
        hidden = torch.tanh(self.hidden_weight @ z + self.hidden_bias)
        return positive(self.weight @ hidden + self.bias).reshape(self._shape)


def _drawn(shape: tuple[int, int], bound: float, *key: Key) -> Tensor:
    return torch.from_numpy(uniform(shape, bound, "modulator", *key))


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
