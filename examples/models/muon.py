"""The optimiser that the tiny models are pretrained with."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn


class Muon:
    """Momentum whose update is orthogonalised, for matrices only (Jordan et al. 2024).

    U = c NS(g + beta m), with NS the quintic Newton-Schulz iteration towards the nearest semi-orthogonal
    matrix and c = sqrt(max(1, rows / columns)). Matrices of one shape are worked on as one batch.
    """

    def __init__(self, matrices: Sequence[nn.Parameter], lr: float, momentum: float = 0.95) -> None:
        self.lr = lr
        self.momentum = momentum
        shapes = sorted({tuple(p.shape) for p in matrices})
        self.groups = [[p for p in matrices if tuple(p.shape) == shape] for shape in shapes]
        self.buffers = [torch.zeros(len(group), *group[0].shape) for group in self.groups]

    @torch.no_grad()
    def step(self, scale: float) -> None:
        for group, buffer in zip(self.groups, self.buffers, strict=True):
            gradient = torch.stack([p.grad for p in group if p.grad is not None])  # (n, rows, columns)
            buffer.mul_(self.momentum).add_(gradient)
            update = orthogonalised(gradient + self.momentum * buffer)
            rows, columns = update.shape[1:]
            factor = self.lr * scale * max(1.0, rows / columns) ** 0.5
            for p, u in zip(group, update, strict=True):
                p.sub_(u, alpha=factor)


def orthogonalised(m: Tensor, iterations: int = 5) -> Tensor:
    """Push every singular value of each matrix of the batch towards 1."""
    a, b, c = 3.4445, -4.7750, 2.0315
    tall = m.shape[-2] > m.shape[-1]
    x = m.mT if tall else m
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(iterations):
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.mT if tall else x
