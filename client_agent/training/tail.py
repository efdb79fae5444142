"""How large the last ranks of a LoRA are: |B[:, k:]| |A[k:, :]| (Frobenius), summed over modules."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn

from schemas.maths.adapter import factor_of, module_of


def tail(parameters: Mapping[str, Tensor], first: int) -> Tensor:
    """Give the size of the ranks from `first` on: () float32, differentiable."""
    sizes = [
        torch.linalg.vector_norm(parameters[f"{module_of(name)}.B"][:, first:])
        * torch.linalg.vector_norm(a[first:])
        for name, a in parameters.items()
        if factor_of(name) == "A"
    ]
    return torch.stack(sizes).sum()


def drawn_to_zero(first: int, strength: float) -> Callable[[Mapping[str, nn.Parameter]], Tensor]:
    """Make what is added to the loss so that the ranks from `first` on shrink where nothing holds them."""
    return lambda parameters: strength * tail(parameters, first)
