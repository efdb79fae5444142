"""A frozen linear layer plus a bank of LoRA experts, of which the selected ones act."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as nnf

from client_agent.adapters.layers import joined_roles
from client_agent.model.architectures import linear_shape


class Mixture:
    """The experts that act, and their weights: one object that all layers of a model read.

    Attributes:
        experts: ordinals in the order of the weights; the shared expert is 0.
        weights: (e,), or (n, t, e) of each token of a batch, float32; None = every weight is 1.
    """

    def __init__(self) -> None:
        self.experts: tuple[int, ...] = ()
        self.weights: Tensor | None = None


class ExpertLinear(nn.Module):
    """A linear layer with a LoRA of every expert and of each role that it serves.

    y = W x + sum over the selected k of alpha_k s B_k A_k x. Parameters are float32 in any precision of the
    base model. Experts of a layer read the same inputs, of which a share `dropout` is zero in training.
    """

    def __init__(
        self,
        base_layer: nn.Module,
        rows: Sequence[Tensor | None],
        experts: Sequence[int],
        rank: int,
        scale: float,
        dropout: float,
        mixture: Mixture,
    ) -> None:
        super().__init__()
        self.base_layer = base_layer
        device = next(base_layer.parameters()).device
        self.out_features, self.in_features = linear_shape(base_layer)
        self.rows = [None if row_numbers is None else row_numbers.to(device) for row_numbers in rows]
        self.scale = scale
        self.dropout = dropout
        self.mixture = mixture
        outputs = [self.out_features if row_numbers is None else len(row_numbers) for row_numbers in rows]
        self.A = nn.ModuleDict(
            {
                str(expert): nn.ParameterList(
                    torch.zeros(rank, self.in_features, device=device) for _ in rows
                )
                for expert in experts
            }
        )
        self.B = nn.ModuleDict(
            {
                str(expert): nn.ParameterList(torch.zeros(d_out, rank, device=device) for d_out in outputs)
                for expert in experts
            }
        )
        self.train(base_layer.training)  # a new module is in training mode, and would drop inputs

    def pairs(self, expert: int) -> list[tuple[nn.Parameter, nn.Parameter]]:
        """Return A (r, d_in) and B (d_out of the role, r) of an expert, role by role."""
        a, b = (cast(nn.ParameterList, factor[str(expert)]) for factor in (self.A, self.B))
        return list(zip(a, b, strict=True))

    def factors(self, expert: int) -> tuple[Tensor, Tensor]:
        """Return A (n r, d_in) and s B (d_out, n r) of an expert's n roles."""
        a, b = zip(*self.pairs(expert), strict=True)
        return joined_roles(a, b, self.rows, self.scale, self.out_features)

    def forward(self, x: Tensor) -> Tensor:
        """Return the base layer's output plus the experts': (..., d_in) -> (..., d_out), base dtype."""
        y = cast(Tensor, self.base_layer(x))
        selected, weights = self.mixture.experts, self.mixture.weights
        if not selected:
            return y
        factors = [self.factors(expert) for expert in selected]
        a, b = torch.cat([a for a, _ in factors]), torch.cat([b for _, b in factors], dim=1)
        read = nnf.dropout(x.float(), self.dropout, self.training)
        z = nnf.linear(read, a)  # (..., e n r)
        if weights is not None:
            by_rank = weights.repeat_interleave(len(a) // len(selected), dim=-1)  # (e n r,) or (n, t, e n r)
            # Some layers read the tokens of all texts in one row.
            z = z * (by_rank if by_rank.ndim == 1 else by_rank.reshape(z.shape))
        return (y + nnf.linear(z, b)).to(y.dtype)  # rounded once, as peft does
