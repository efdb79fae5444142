"""Fit linear maps from sums that fit in memory, whatever the number of rows. All of it in float64."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import cast

import torch
from torch import Tensor


@dataclass(slots=True)
class Moments:
    """Sums over rows x (d_in,) and y (d_out,): X^T X and X^T Y."""

    xx: Tensor | None = None  # (d_in, d_in)
    xy: Tensor | None = None  # (d_in, d_out)

    def add(self, x: Tensor, y: Tensor | None = None) -> None:
        """Add rows x (n, d_in), and y (n, d_out) to be predicted from them."""
        x = x.double()
        square = x.T @ x
        self.xx = square if self.xx is None else self.xx.add_(square)
        if y is not None:
            product = x.T @ y.double()
            self.xy = product if self.xy is None else self.xy.add_(product)

    def principal(self, rank: int) -> Tensor:
        """Give the first `rank` principal directions, uncentred, as orthonormal rows: (rank, d_in).

        Each has its largest entry positive, so that the same sums give the same rows. Rows beyond d_in are
        zero.
        """
        assert self.xx is not None
        directions = torch.linalg.eigh(self.xx).eigenvectors.flip(-1)[:, :rank].T  # (<= rank, d_in)
        largest = directions.gather(1, directions.abs().argmax(1, keepdim=True))  # (<= rank, 1)
        directions = directions * largest.sign()
        padding = directions.new_zeros(rank - len(directions), directions.shape[1])
        return torch.cat([directions, padding])

    def ridge(self, relative: float) -> Tensor:
        """Solve W = (X^T X + lam I)^-1 X^T Y with lam = relative * tr(X^T X) / d_in: (d_in, d_out)."""
        assert self.xx is not None
        assert self.xy is not None
        lam = relative * self.xx.trace() / len(self.xx)
        penalty = torch.diag(lam.clamp(min=torch.finfo(torch.float64).tiny).expand(len(self.xx)))
        return cast(Tensor, torch.linalg.solve(self.xx + penalty, self.xy))


@dataclass(slots=True)
class Residual:
    """The relative error ||prediction - y|| / ||y|| over all rows seen."""

    _missed: float = field(default=0.0)
    _whole: float = field(default=0.0)

    def add(self, prediction: Tensor, y: Tensor) -> None:
        """Add rows, both (n, d)."""
        y = y.double()
        self._missed += float((prediction - y).square().sum())
        self._whole += float(y.square().sum())

    @property
    def relative(self) -> float:
        """The error; 0 when there was nothing to predict and nothing was predicted."""
        return (self._missed / self._whole) ** 0.5 if self._whole else float(self._missed > 0)
