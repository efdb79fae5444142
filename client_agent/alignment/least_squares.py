"""Ridge regression and principal directions from running sums of a fixed size, in float64."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import cast

import torch
from torch import Tensor


@dataclass(slots=True)
class Moments:
    """Second moments of rows x (d_in,) and y (d_out,): X^T X and X^T Y."""

    xx: Tensor | None = None  # (d_in, d_in)
    xy: Tensor | None = None  # (d_in, d_out)

    def add(self, x: Tensor, y: Tensor | None = None) -> None:
        # In float64: squares of large and small directions are summed over many tokens.
        x = x.double()
        square = x.T @ x
        self.xx = square if self.xx is None else self.xx.add_(square)
        if y is not None:
            product = x.T @ y.double()
            self.xy = product if self.xy is None else self.xy.add_(product)

    def principal(self, rank: int) -> Tensor:
        """Return the first `rank` principal directions, uncentred, as orthonormal rows (rank, d_in).

        The largest entry of each is positive, so that equal sums yield equal rows. Rows beyond d_in are zero.
        """
        assert self.xx is not None
        # eigh returns the smallest eigenvalue first.
        directions = torch.linalg.eigh(self.xx).eigenvectors.flip(-1)[:, :rank].T  # (<= rank, d_in)
        # An eigenvector's sign is arbitrary, and differs between libraries and machines.
        largest = directions.gather(1, directions.abs().argmax(1, keepdim=True))  # (<= rank, 1)
        directions = directions * largest.sign()
        padding = directions.new_zeros(rank - len(directions), directions.shape[1])
        return torch.cat([directions, padding])

    def ridge(self, relative: float) -> Tensor:
        """Solve W = (X^T X + lam I)^-1 X^T Y with lam = relative * tr(X^T X) / d_in: (d_in, d_out)."""
        assert self.xx is not None
        assert self.xy is not None
        lam = relative * self.xx.trace() / len(self.xx)
        # Inputs that are all zero have trace zero; a tiny penalty keeps the system solvable.
        penalty = torch.diag(lam.clamp(min=torch.finfo(torch.float64).tiny).expand(len(self.xx)))
        return cast(Tensor, torch.linalg.solve(self.xx + penalty, self.xy))


@dataclass(slots=True)
class Residual:
    """The relative error ||prediction - y|| / ||y|| over all added rows."""

    _error: float = field(default=0.0)
    _total: float = field(default=0.0)

    def add(self, prediction: Tensor, y: Tensor) -> None:
        y = y.double()
        self._error += float((prediction - y).square().sum())
        self._total += float(y.square().sum())

    @property
    def relative(self) -> float:
        return (self._error / self._total) ** 0.5 if self._total else float(self._error > 0)
