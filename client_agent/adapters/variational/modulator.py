"""The modulator: random Fourier features of a client's mean feature, and a small network to a prior.

It is never sent. A client yields one feature, so a shared network would have as many data points as there are
clients, for more bytes than the posterior that it explains.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import sqrt
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as nnf

from client_agent.adapters.variational.posterior import START, positive, raw_of
from client_agent.model.examples import Example, encode_beginnings, probe_set
from client_agent.model.loading import BaseModel
from client_agent.model.tokens import Batch, collate, pad_id
from schemas.maths.seeded_random import Key, uniform

_WIDTH = 32


def frequencies(inputs: int, features: int, seed: int) -> Tensor:
    """Draw W (inputs, features / 2), normal with variance 1 / inputs; fixed and equal for all clients.

    Two independent features of unit variance have |h - h'|^2 of about 2 inputs, so that their kernel
    exp(-|h - h'|^2 / (2 inputs)) is about 1/e.
    """
    shape = (inputs, features // 2)
    first, second = uniform((2, inputs * shape[1]), 1.0, "frequencies", seed).astype(np.float64)
    radius = np.sqrt(-2 * np.log(np.maximum((1 + first) / 2, 2.0**-53)))  # Box and Muller 1958
    normal = (radius * np.cos(np.pi * second)).astype(np.float32).reshape(shape)
    return torch.from_numpy(normal / np.float32(sqrt(inputs)))


def fourier(feature: Tensor, frequencies: Tensor) -> Tensor:
    """Compute z = sqrt(2/D) [cos(h W), sin(h W)] (D,), of norm 1 (Rahimi and Recht 2007)."""
    phases = feature @ frequencies  # (D / 2,)
    return torch.cat([torch.cos(phases), torch.sin(phases)]) / sqrt(len(phases))


def pooled(server: Tensor, personal: Tensor) -> Tensor:
    """Pool two Gamma priors (2, M, r) evenly: the normalised geometric mean of their densities.

    Shape and rate are the means of the two. The pooled mean (a_g + alpha) / (b_g + beta) weighs both means
    by their rates: a Gamma's rate counts observations.
    """
    return (server + personal) / 2


class Modulator(nn.Module):
    """A network from z (D,) to the client's own prior (alpha, beta): (2, M, r), near `START` at first."""

    def __init__(self, features: int, modules: int, rank: int, *, seed: int) -> None:
        super().__init__()
        outputs = 2 * modules * rank
        self._shape = (2, modules, rank)
        self.hidden_weight = nn.Parameter(_random((_WIDTH, features), 1.0, "hidden", seed))
        self.hidden_bias = nn.Parameter(torch.zeros(_WIDTH))
        self.weight = nn.Parameter(_random((outputs, _WIDTH), 0.1, "outputs", seed))
        self.bias = nn.Parameter(raw_of(torch.full((2, modules, rank), START)).reshape(-1))

    def forward(self, z: Tensor) -> Tensor:
        """Compute raw (alpha, beta) = W' tanh(W z + c) + c', then positive; a ReLU could be dead at z."""
        hidden = torch.tanh(self.hidden_weight @ z + self.hidden_bias)
        return positive((self.weight @ hidden + self.bias).reshape(self._shape))


def _random(shape: tuple[int, int], bound: float, *key: Key) -> Tensor:
    return torch.from_numpy(uniform(shape, bound, "modulator", *key))


_EXAMPLES = 32
_AT_ONCE = 8


@torch.no_grad()
def mean_feature(base: BaseModel, examples: Sequence[Example], max_length: int) -> Tensor:
    """Average the layer-normalised mean and std of each layer over a fixed set of examples: (2 L,) float32.

    Mean and std are over the last token's hidden state (d,) after the layer, adapter included.

    Raises:
        TextTooLong: an example exceeds the base model's context.
    """
    texts = encode_beginnings(base, probe_set(examples, _EXAMPLES), max_length)
    total = torch.zeros(2 * base.layers, device=base.device)
    for start in range(0, len(texts), _AT_ONCE):
        batch = collate(texts[start : start + _AT_ONCE], pad=pad_id(base.tokenizer)).to(base.device)
        total += nnf.layer_norm(_layer_moments(base, batch), (2 * base.layers,)).sum(0)
    return total / max(1, len(texts))


def _layer_moments(base: BaseModel, batch: Batch) -> Tensor:
    """Compute mean and std of the last token's hidden state of every layer: (n, 2 L)."""
    decoder = cast(Callable[..., Any], base.model.get_submodule(base.parts.decoder))
    output = decoder(
        input_ids=batch.ids, attention_mask=batch.attention, use_cache=False, output_hidden_states=True
    )
    rows, last = torch.arange(len(batch.ids), device=batch.ids.device), batch.attention.sum(1) - 1
    layers = [states[rows, last].float() for states in output.hidden_states[1:]]  # L times (n, d)
    return torch.cat(
        [torch.stack([h.mean(-1) for h in layers], 1), torch.stack([h.std(-1) for h in layers], 1)], 1
    )
