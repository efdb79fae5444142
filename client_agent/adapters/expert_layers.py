"""A frozen linear layer plus a bank of LoRA experts, of which the selected ones act."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as nnf

from client_agent.adapters.layers import FactoredLinear, PQCore, joined_roles
from client_agent.model.architectures import block_diagonal


class Mixture:
    """The experts that act, and their weights: one object that all layers of a model read.

    Attributes:
        experts: ordinals in the order of the weights; the shared expert is 0.
        weights: (e,), or (n, t, e) of each token of a batch, float32; None = every weight is 1.
    """

    def __init__(self) -> None:
        self.experts: tuple[int, ...] = ()
        self.weights: Tensor | None = None


class ExpertLinear(FactoredLinear):
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
        super().__init__(base_layer, rows, rank, scale, dropout)
        self.mixture = mixture
        factors = {str(expert): self.zeros() for expert in experts}
        self.A = nn.ModuleDict({expert: a for expert, (a, _) in factors.items()})
        self.B = nn.ModuleDict({expert: b for expert, (_, b) in factors.items()})
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
        # Experts side by side are one LoRA of the summed rank: two products instead of two for each.
        a, b = torch.cat([a for a, _ in factors]), torch.cat([b for _, b in factors], dim=1)
        read = nnf.dropout(x.float(), self.dropout, self.training)
        z = nnf.linear(read, a)  # (..., e n r)
        if weights is not None:
            by_rank = weights.repeat_interleave(len(a) // len(selected), dim=-1)  # (e n r,) or (n, t, e n r)
            # Some layers read the tokens of all texts in one row.
            z = z * (by_rank if by_rank.ndim == 1 else by_rank.reshape(z.shape))
        return (y + nnf.linear(z, b)).to(y.dtype)  # rounded once, as peft does


class ExpertPQLinear(nn.Module):
    """A linear layer with P and Q of every expert and of each role that it serves, between frozen A and B.

    y = W x + s B sum over the selected k of alpha_k (P_k A x + Q_k). P is block-diagonal over the n roles of
    a layer, as in `PQLinear`. Adapter tensors are float32 in any precision of the base model.
    """

    A: Tensor
    scaled_B: Tensor

    def __init__(
        self,
        base_layer: nn.Module,
        a: Tensor,
        b: Tensor,
        scale: float,
        cores: Mapping[int, Sequence[PQCore]],
        mixture: Mixture,
    ) -> None:
        super().__init__()
        self.base_layer = base_layer
        self.mixture = mixture
        self.register_buffer("A", a.float(), persistent=False)  # (n r, d_in)
        self.register_buffer("scaled_B", scale * b.float(), persistent=False)  # (d_out, n r)
        self.cores = nn.ModuleDict({str(expert): nn.ModuleList(of) for expert, of in cores.items()})

    def factors(self, expert: int) -> tuple[Tensor, Tensor | None]:
        """Return P (n r, n r) and Q (n r,) of an expert's n roles; Q is None without bias."""
        cores = [cast(PQCore, core) for core in cast(nn.ModuleList, self.cores[str(expert)])]
        qs: list[Tensor] = [core.Q for core in cores if core.Q is not None]
        if len(cores) == 1:
            return cores[0].P, qs[0] if qs else None
        return block_diagonal([core.P for core in cores]), torch.cat(qs) if qs else None

    def forward(self, x: Tensor) -> Tensor:
        """Return the base layer's output plus the experts': (..., d_in) -> (..., d_out), base dtype."""
        y = cast(Tensor, self.base_layer(x))
        selected, weights = self.mixture.experts, self.mixture.weights
        if not selected:
            return y
        # P and Q are float32, and autocast would round their inputs to bfloat16.
        with torch.autocast(x.device.type, enabled=False):
            z = nnf.linear(x.float(), self.A)  # (..., n r)
            ps, qs = zip(*(self.factors(expert) for expert in selected), strict=True)
            q = torch.cat(qs) if qs[0] is not None else None
            by_rank = nnf.linear(z, torch.cat(ps), q)  # (..., e n r)
            h = by_rank.reshape(*z.shape[:-1], len(selected), z.shape[-1])  # (..., e, n r)
            if weights is not None:
                by_expert = weights if weights.ndim == 1 else weights.reshape(h.shape[:-1])
                h = h * by_expert.unsqueeze(-1)
            added = nnf.linear(h.sum(dim=-2), self.scaled_B)
        return y + added.to(y.dtype)
