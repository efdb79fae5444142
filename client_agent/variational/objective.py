"""What is added to the cross-entropy while importance is learnt. Pure; one formula per function.

    alpha_s(t) mean(SmoothL1(n)/kappa + ln kappa) + alpha_p mean(KL) + alpha_f/2 |theta - theta_0|^2

with n_lj the L1 norm of column j of module l's B, and kappa_lj = a'/b' (ca_pfl.md, "Build this").
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor
from torch.nn import functional as nnf


def column_norms(tensors: Mapping[str, Tensor], modules: Sequence[str]) -> Tensor:
    """n_lj = |column j of module l's B|_1: (M, r)."""
    return torch.stack([tensors[f"{module}.B"].abs().sum(0) for module in modules])


def size_term(norms: Tensor, kappa: Tensor) -> Tensor:
    """mean(SmoothL1(n)/kappa + ln kappa) (): the negative log density of n at scale kappa.

    Without ln kappa a larger kappa would always be better; with it the best is SmoothL1(n).
    """
    smooth = nnf.smooth_l1_loss(norms, torch.zeros_like(norms), reduction="none")
    return (smooth / kappa + torch.log(kappa)).mean()


def proximal_term(tensors: Mapping[str, Tensor], start: Mapping[str, Tensor]) -> Tensor:
    """|theta - theta_0|^2 / 2 (), over the tensors of `start` alone (FedProx, Li et al. 2020)."""
    return torch.stack([(tensors[name] - values).square().sum() for name, values in start.items()]).sum() / 2


def size_weight(alpha_s: float, round_number: int, warm_rounds: int) -> float:
    """alpha_s(t) = alpha_s min(1, t / (T_warm + 1)) in round t = 1, 2, ...: some of it from the first on."""
    return alpha_s * min(1.0, round_number / (warm_rounds + 1))
