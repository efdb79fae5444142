"""Layers that compute a frozen linear layer plus an adapter or a base delta."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as nnf

from client_agent.model.architectures import block_diagonal, linear_shape, place_rows

GATE_AT_START = -1.386  # sigmoid(-1.386) = 0.2


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Apply a linear map, or one of each text: (..., d_in) -> (..., d_out).

    Args:
        weight: (d_out, d_in), or (n, d_out, d_in) for the n texts of a batch, as `bias` (n, d_out).
    """
    if weight.ndim == 2:
        return nnf.linear(x, weight, bias)
    # Some layers read the tokens of all texts in one row.
    by_text = x.reshape(len(weight), -1, x.shape[-1])
    y = torch.bmm(by_text, weight.transpose(1, 2))
    if bias is not None:
        y = y + bias.unsqueeze(1)
    return y.reshape(*x.shape[:-1], weight.shape[1])


class PQCore(nn.Module):
    """Local P and, with `bias`, Q of one role, and a frozen global branch of the same when `gated`.

    Since both branches share A and B, the gated sum (1-b) h_L + b h_G is one branch with
    P = (1-b) P_L + b P_G and Q likewise, b = sigmoid(gate).
    """

    P_global: Tensor
    Q_global: Tensor | None

    def __init__(self, rank: int, device: torch.device, *, gated: bool, bias: bool) -> None:
        super().__init__()
        self.gated = gated
        self.P = nn.Parameter(torch.zeros(rank, rank, device=device))
        self.Q = nn.Parameter(torch.zeros(rank, device=device)) if bias else None
        if gated:
            self.register_buffer("P_global", torch.zeros_like(self.P.data), persistent=False)
            q_global = torch.zeros(rank, device=device) if bias else None
            self.register_buffer("Q_global", q_global, persistent=False)
            self.gate = nn.Parameter(torch.tensor(GATE_AT_START, device=device))

    def branch(self) -> dict[str, nn.Parameter]:
        """Return the local parameters by factor: P, and Q with `bias`."""
        return {"P": self.P} if self.Q is None else {"P": self.P, "Q": self.Q}

    def global_branch(self) -> dict[str, Tensor]:
        """Return the frozen tensors of a gated core by factor."""
        return {"P": self.P_global} if self.Q_global is None else {"P": self.P_global, "Q": self.Q_global}

    def merged(self) -> dict[str, Tensor]:
        """Return P (r, r), and Q (r,) with `bias`, of the gated sum, or the local ones without a gate."""
        local = self.branch()
        if not self.gated:
            return dict(local)
        # Both branches share A and B, so the gated sum is one branch, and costs what a plain one costs.
        b, shared = torch.sigmoid(self.gate), self.global_branch()
        # A gate of each text of a batch (n,) is a factor of its matrix or vector.
        return {
            factor: (1 - gate) * tensor + gate * shared[factor]
            for factor, tensor in local.items()
            for gate in (b.reshape(*b.shape, *[1] * (tensor.ndim - b.ndim)),)
        }


class PQLinear(nn.Module):
    """A linear layer with PQ-LoRA branches of the n roles that it serves; n > 1 when it is fused.

    As in `LoraLinear`, trained tensors may have one more dimension in front, one value for each text.

    The branches form one of rank n r with a block-diagonal P: A (n r, d_in) stacks the roles' A, and
    B (d_out, n r) holds each role's B in its own columns and its own output rows.
    Adapter tensors are float32 in any precision of the base model.
    """

    A: Tensor
    scaled_B: Tensor

    def __init__(
        self, base_layer: nn.Module, a: Tensor, b: Tensor, scale: float, *, cores: Sequence[PQCore]
    ) -> None:
        super().__init__()
        self.base_layer = base_layer
        self.register_buffer("A", a.float(), persistent=False)  # (n r, d_in)
        self.register_buffer("scaled_B", scale * b.float(), persistent=False)  # (d_out, n r)
        self.cores = nn.ModuleList(cores)

    def merged(self) -> tuple[Tensor, Tensor | None]:
        """Return P (n r, n r) and Q (n r,) of all n roles, gates applied; Q is None without bias."""
        branches = [cast(PQCore, core).merged() for core in self.cores]
        qs = [branch["Q"] for branch in branches if "Q" in branch]
        if len(branches) == 1:
            return branches[0]["P"], qs[0] if qs else None
        return block_diagonal([branch["P"] for branch in branches]), torch.cat(qs, dim=-1) if qs else None

    def forward(self, x: Tensor) -> Tensor:
        """Return the base layer's output plus the adapter's: (..., d_in) -> (..., d_out), base dtype."""
        y = cast(Tensor, self.base_layer(x))
        # P and Q are float32, and autocast would round their inputs to bfloat16.
        with torch.autocast(x.device.type, enabled=False):
            p, q = self.merged()
            z = nnf.linear(x.float(), self.A)  # (..., n r)
            h = nnf.linear(linear(z, p, q), self.scaled_B)  # (..., d_out)
        return y + h.to(y.dtype)


class FactoredLinear(nn.Module):
    """A linear layer, and LoRA factors of each role that it serves; `rows` are its outputs, None = all."""

    def __init__(
        self, base_layer: nn.Module, rows: Sequence[Tensor | None], rank: int, scale: float, dropout: float
    ) -> None:
        super().__init__()
        self.base_layer = base_layer
        self._device = next(base_layer.parameters()).device
        self.out_features, self.in_features = linear_shape(base_layer)
        self.rows = [None if row_numbers is None else row_numbers.to(self._device) for row_numbers in rows]
        self.rank = rank
        self.scale = scale
        self.dropout = dropout

    def zeros(self) -> tuple[nn.ParameterList, nn.ParameterList]:
        """Return A (r, d_in) and B (d_out of the role, r) of every role, zero."""
        outputs = [
            self.out_features if row_numbers is None else len(row_numbers) for row_numbers in self.rows
        ]
        a = nn.ParameterList(torch.zeros(self.rank, self.in_features, device=self._device) for _ in outputs)
        return a, nn.ParameterList(torch.zeros(d_out, self.rank, device=self._device) for d_out in outputs)


class LoraLinear(FactoredLinear):
    """A linear layer with a LoRA of each role that it serves; `rows` are a role's output rows, None = all.

    Parameters are float32 in any precision of the base model. In training mode a share `dropout` of the
    inputs of A is set to zero, and the rest is divided by 1 - `dropout`; roles of one layer read the same.
    `torch.func.functional_call` may put tensors with one more dimension in their place: one A and B for each
    text of a batch.
    """

    def __init__(
        self, base_layer: nn.Module, rows: Sequence[Tensor | None], rank: int, scale: float, dropout: float
    ) -> None:
        super().__init__(base_layer, rows, rank, scale, dropout)
        self.A, self.B = self.zeros()
        self.train(base_layer.training)  # a new module is in training mode, and would drop inputs

    def factors(self) -> tuple[Tensor, Tensor]:
        """Return A (n r, d_in) and s B (d_out, n r) of all n roles."""
        return joined_roles([*self.A], [*self.B], self.rows, self.scale, self.out_features)

    def forward(self, x: Tensor) -> Tensor:
        """Return the base layer's output plus the adapter's: (..., d_in) -> (..., d_out), base dtype."""
        y = cast(Tensor, self.base_layer(x))
        a, b = self.factors()
        read = nnf.dropout(x.float(), self.dropout, self.training)
        return (y + linear(linear(read, a), b)).to(y.dtype)  # rounded once, as peft does


def joined_roles(
    a: Sequence[Tensor], b: Sequence[Tensor], rows: Sequence[Tensor | None], scale: float, d_out: int
) -> tuple[Tensor, Tensor]:
    """Return A (n r, d_in) and s B (d_out, n r) of the n roles of a layer; a role without rows is alone."""
    fused = [row_numbers for row_numbers in rows if row_numbers is not None]
    if not fused:
        return a[0], scale * b[0]
    return torch.cat([*a], dim=-2), scale * place_rows(b, fused, d_out)


class BaseDeltaLinear(nn.Module):
    """A layer, adapted or not, plus the base delta B A."""

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
        """Return the layer's output plus B A x: (..., d_in) -> (..., d_out), in the layer's dtype."""
        y = cast(Tensor, self.base_layer(x))
        return y + nnf.linear(nnf.linear(x.float(), self.A), self.B).to(y.dtype)
