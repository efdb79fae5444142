"""A linear layer to which something was added for good, beside its weights: these may be in few bits.

h = L(x) + B A x    A: (k, d_in)  B: (d_out, k), every scale in it; both frozen, float32
"""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as nnf


class FoldedLinear(nn.Module):
    """A layer, with or without an adapter around it, and what was folded into it."""

    A: Tensor
    B: Tensor

    def __init__(self, base_layer: nn.Module, a: Tensor, b: Tensor) -> None:
        super().__init__()
        self.base_layer = base_layer
        device = next(base_layer.parameters()).device
        self.out_features, self.in_features = len(b), a.shape[1]
        self.register_buffer("A", a.to(device, torch.float32), persistent=False)
        self.register_buffer("B", b.to(device, torch.float32), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """Add B A x to the layer's output: (..., d_in) -> (..., d_out), in the layer's dtype."""
        y = cast(Tensor, self.base_layer(x))
        return y + nnf.linear(nnf.linear(x.float(), self.A), self.B).to(y.dtype)
