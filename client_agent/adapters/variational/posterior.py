"""The posterior kappa_lj ~ Gamma(a', b') over the importance of each rank of each module.

Row l of every (M, r) tensor belongs to the l-th module of `schemas.maths.adapter.lora_modules`. Importance is
the mean a'/b', never a sample, so that the sent values follow from the posterior (ca_pfl.md, "Build this").
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as nnf

_LEAST = 0.01  # lower bound of shapes and rates, where lnGamma and 1/b are still well-conditioned


def positive(raw: Tensor) -> Tensor:
    """Compute a' = eps + softplus(u)."""
    return _LEAST + nnf.softplus(raw)


def raw_of(values: Tensor) -> Tensor:
    # The inverse of `positive`, for values above eps.
    above = (values - _LEAST).clamp(min=1e-6)
    return above + torch.log(-torch.expm1(-above))


def gamma_kl(a: Tensor, b: Tensor, prior_a: Tensor, prior_b: Tensor) -> Tensor:
    """Compute KL(Gamma(a, b) || Gamma(a_g, b_g)) elementwise:

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
        """Return shapes a' and rates b' (2, M, r), positive."""
        return positive(self.u)

    @torch.no_grad()
    def restart(self, prior: Tensor) -> None:
        self.u.copy_(raw_of(prior))


def importance(gamma: Tensor) -> Tensor:
    """Compute s = a'/b' (M, r) from shapes and rates (2, M, r)."""
    return gamma[0] / gamma[1]


def column_norms(tensors: Mapping[str, Tensor], modules: Sequence[str]) -> Tensor:
    """Compute n_lj = |column j of module l's B|_1: (M, r)."""
    return torch.stack([tensors[f"{module}.B"].abs().sum(0) for module in modules])


def size_term(norms: Tensor, kappa: Tensor) -> Tensor:
    """Compute mean(SmoothL1(n)/kappa + ln kappa) (), the negative log density of n at scale kappa.

    Without ln kappa the minimum is at kappa -> inf; with it, at kappa = SmoothL1(n).
    """
    smooth = nnf.smooth_l1_loss(norms, torch.zeros_like(norms), reduction="none")
    return (smooth / kappa + torch.log(kappa)).mean()


def size_weight(alpha_s: float, round_number: int, warm_rounds: int) -> float:
    """Compute alpha_s(t) = alpha_s min(1, t / (T_warm + 1)) in round t = 1, 2, ..."""
    return alpha_s * min(1.0, round_number / (warm_rounds + 1))
