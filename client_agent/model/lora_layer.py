"""Ordinary LoRA of several roles on the one linear layer that serves them. peft knows layers, not roles.

h_O = W h + s B A h, in the rows of each role with its own A: (r, d_in)  B: (d_out of the role, r)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as nnf

from client_agent.model.roles import in_own_rows, linear_shape


class FusedLora(nn.Module):
    """A linear layer and the LoRA of each role that it serves; `rows` are the outputs that each role owns.

    Its parameters are float32, whatever the base is.
    """

    def __init__(self, base_layer: nn.Module, rows: Sequence[Tensor], rank: int, scale: float) -> None:
        super().__init__()
        self.base_layer = base_layer
        device = next(base_layer.parameters()).device
        self.rows = [own.to(device) for own in rows]
        self.scale = scale
        self.out_features, self.in_features = linear_shape(base_layer)
        self.A = nn.ParameterList(torch.zeros(rank, self.in_features, device=device) for _ in rows)
        self.B = nn.ParameterList(torch.zeros(len(own), rank, device=device) for own in rows)

    def factors(self) -> tuple[Tensor, Tensor]:
        """Give A (n r, d_in) and s B (d_out, n r) of all n roles together."""
        return torch.cat(list(self.A)), self.scale * in_own_rows(list(self.B), self.rows, self.out_features)

    def forward(self, x: Tensor) -> Tensor:
        """Add the adapters to the base layer's output: (..., d_in) -> (..., d_out), in the base's dtype."""
        y = cast(Tensor, self.base_layer(x))
        a, b = self.factors()
        return y + nnf.linear(nnf.linear(x.float(), a), b).to(y.dtype)
