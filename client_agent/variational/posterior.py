"""Learn how much each rank of each module matters: kappa_lj ~ Gamma(a', b'). Knows no model and no file.

Row l of every (M, r) tensor belongs to the l-th module of `schemas.maths.adapter.lora_modules`. Importance is
the mean a'/b', never a draw: what is sent follows from what was learnt (ca_pfl.md, "Build this").
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as nnf

_LEAST = 0.01  # of a shape and a rate: lnGamma and 1/b are tame from here on


def positive(raw: Tensor) -> Tensor:
    """a' = eps + softplus(u)."""
    return _LEAST + nnf.softplus(raw)


def raw_of(values: Tensor) -> Tensor:
    """u from a': the inverse of `positive`, of values above eps."""
    above = (values - _LEAST).clamp(min=1e-6)
    return above + torch.log(-torch.expm1(-above))


def gamma_kl(a: Tensor, b: Tensor, prior_a: Tensor, prior_b: Tensor) -> Tensor:
    """KL(Gamma(a, b) || Gamma(a_g, b_g)) of each element, shapes and rates:

    (a - a_g) psi(a) - lnGamma(a) + lnGamma(a_g) + a_g ln(b / b_g) + a (b_g - b) / b.
    """
    return (
        (a - prior_a) * torch.digamma(a)
        - torch.lgamma(a)
        + torch.lgamma(prior_a)
        + prior_a * torch.log(b / prior_b)
        + a * (prior_b - b) / b
    )


class Posterior(nn.Module):
    """q(kappa) of every (module, rank): `u` holds the raw shapes and rates, (2, M, r)."""

    def __init__(self, modules: int, rank: int) -> None:
        super().__init__()
        self.u = nn.Parameter(raw_of(torch.ones(2, modules, rank)))

    def gamma(self) -> Tensor:
        """Give shapes a' and rates b': (2, M, r), positive."""
        return positive(self.u)

    @torch.no_grad()
    def restart(self, prior: Tensor) -> None:
        """Begin anew at a prior (2, M, r)."""
        self.u.copy_(raw_of(prior))


def importance(gamma: Tensor) -> Tensor:
    """s = a'/b' (M, r) of shapes and rates (2, M, r)."""
    return gamma[0] / gamma[1]
