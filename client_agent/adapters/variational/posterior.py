"""The posterior kappa_lj ~ Gamma(a', b') over the importance of each rank of each module.

Row l of every (M, r) tensor belongs to the l-th module of `schemas.maths.adapter.lora_modules`. Importance is
the mean a'/b', never a sample, so that the sent values follow from the posterior. Shapes exceed 1, where the
mean of 1/kappa is finite.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as nnf

_LEAST = torch.tensor([1.1, 0.01]).view(2, 1, 1)
"""Lower bounds of shapes and rates: E[1/kappa] = b/(a - 1) is at most 10 b, and 1/b is well-conditioned."""

START = 2.0
"""Shape and rate that all begin with: E[kappa] = 1, as in the published Gamma(1, 1), and E[1/kappa] = 2."""


def positive(raw: Tensor) -> Tensor:
    """Compute shapes 1.1 + softplus(u) and rates .01 + softplus(v) from raw values (2, M, r)."""
    return _LEAST.to(raw.device) + nnf.softplus(raw)


def raw_of(gamma: Tensor) -> Tensor:
    # The inverse of `positive`; values at or below the bounds become the bounds.
    above = (gamma - _LEAST.to(gamma.device)).clamp(min=1e-6)
    # The inverse of softplus in a form that does not overflow.
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
        self.u = nn.Parameter(raw_of(torch.full((2, modules, rank), START)))

    def gamma(self) -> Tensor:
        """Return shapes a' > 1 and rates b' > 0 (2, M, r)."""
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


def inverse_mean(gamma: Tensor) -> Tensor:
    """Compute E[1/kappa] = b/(a - 1) elementwise under Gamma(a, b), a > 1.

    With Gamma(a) for the function, the integral of kappa^(a - 2) e^(-b kappa) b^a / Gamma(a) over kappa > 0
    is b^a Gamma(a - 1) / (b^(a - 1) Gamma(a)), and Gamma(a) = (a - 1) Gamma(a - 1).
    """
    return gamma[1] / (gamma[0] - 1)


def log_mean(gamma: Tensor) -> Tensor:
    """Compute E[ln kappa] = psi(a) - ln b elementwise under Gamma(a, b).

    E[kappa^t] = Gamma(a + t) / (Gamma(a) b^t), whose derivative at t = 0 this is.
    """
    return torch.digamma(gamma[0]) - torch.log(gamma[1])


def size_term(norms: Tensor, gamma: Tensor) -> Tensor:
    """Compute mean(s E[1/kappa] + E[ln kappa]) () of s = SmoothL1(n), under kappa ~ Gamma(a, b).

    `gamma` has shapes and rates, (2, *) for norms of shape (*).

    s given kappa is exponential with mean kappa, -ln p(s | kappa) = s/kappa + ln kappa, and this term is its
    expectation under the posterior. By Jensen's inequality

        -ln p(s) = -ln E_p[p(s | kappa)] <= E_q[-ln p(s | kappa)] + KL(q || p)

    for the prior p: this term plus the mean KL is a bound on the mean negative evidence, -ln p(s).
    Weighed alpha_s and alpha_p it is alpha_s times the bound whose KL has weight alpha_p / alpha_s. Without
    E[ln kappa] the minimum is at kappa -> inf. At the posterior's mean kappa in place of the expectations the
    term depends on a/b alone, and the concentration a has no gradient.
    """
    s = nnf.smooth_l1_loss(norms, torch.zeros_like(norms), reduction="none")
    return (s * inverse_mean(gamma) + log_mean(gamma)).mean()


def size_weight(alpha_s: float, round_number: int, warm_rounds: int) -> float:
    """Compute alpha_s(t) = alpha_s min(1, t / (T_warm + 1)) in round t = 1, 2, ..."""
    return alpha_s * min(1.0, round_number / (warm_rounds + 1))
