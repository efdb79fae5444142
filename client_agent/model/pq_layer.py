"""The PQ-LoRA layer: what it adds to a frozen linear layer's output. Never touches the layer's weights.

    h_O = W h + s B (P A h + Q)            A: (r, d_in)  B: (d_out, r)  P: (r, r)  Q: (r,)

(fedmosaic.md section 2; FedMosaic, arXiv 2506.11024, "Co-LoRA"). A and B are frozen; P = Q = 0 at the start.
"""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as nnf

GATE_AT_START = -1.386  # sigmoid of it is 0.2


class PQLinear(nn.Module):
    """A linear layer with a PQ-LoRA branch, and with a frozen global one beside it when `gated`.

    Since both branches share A and B, the gated sum (1-b) h_L + b h_G is one branch with
    P = (1-b) P_L + b P_G and Q likewise, b = sigmoid(gate). All of it is float32, whatever the base is.
    """

    A: Tensor
    B: Tensor
    P_global: Tensor
    Q_global: Tensor

    def __init__(self, base_layer: nn.Module, a: Tensor, b: Tensor, scale: float, *, gated: bool) -> None:
        super().__init__()
        rank = a.shape[0]
        self.base_layer = base_layer
        self.scale = scale
        self.gated = gated
        self.register_buffer("A", a.float(), persistent=False)  # (r, d_in)
        self.register_buffer("B", b.float(), persistent=False)  # (d_out, r)
        self.P = nn.Parameter(torch.zeros(rank, rank, device=a.device))
        self.Q = nn.Parameter(torch.zeros(rank, device=a.device))
        if gated:
            self.register_buffer("P_global", torch.zeros_like(self.P.data), persistent=False)
            self.register_buffer("Q_global", torch.zeros_like(self.Q.data), persistent=False)
            self.gate = nn.Parameter(torch.tensor(GATE_AT_START, device=a.device))

    def merged(self) -> tuple[Tensor, Tensor]:
        """Give P (r, r) and Q (r,) as they act: the gate's mixture, or the local ones without a gate."""
        if not self.gated:
            return self.P, self.Q
        b = torch.sigmoid(self.gate)
        return (1 - b) * self.P + b * self.P_global, (1 - b) * self.Q + b * self.Q_global

    def forward(self, x: Tensor) -> Tensor:
        """Add the adapter to the base layer's output: (..., d_in) -> (..., d_out), in the base's dtype."""
        y = cast(Tensor, self.base_layer(x))
        with torch.autocast(x.device.type, enabled=False):
            p, q = self.merged()
            z = nnf.linear(x.float(), self.A)  # (..., r)
            h = self.scale * nnf.linear(nnf.linear(z, p, q), self.B)  # (..., d_out)
        return y + h.to(y.dtype)
