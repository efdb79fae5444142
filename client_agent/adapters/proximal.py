"""The distance of an adapter to fixed values as a loss term, as FedProx, Ditto and CA-PFL have it."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from client_agent.adapters.base import Penalty, State


def proximal_term(tensors: Mapping[str, Tensor], start: Mapping[str, Tensor]) -> Tensor:
    """Compute |theta - theta_0|^2 / 2 () over the tensors of `start` (FedProx, Li et al. 2020)."""
    distances = [
        (tensors[name] - values.to(tensors[name].device)).square().sum() for name, values in start.items()
    ]
    return torch.stack(distances).sum() / 2


def pull_to(state: State, weight: float) -> Penalty | None:
    """Return the penalty weight / 2 |theta - state|^2; None for a weight of 0."""
    if not weight:
        return None
    start = {name: torch.from_numpy(values.copy()) for name, values in state.items()}

    def penalty(parameters: Mapping[str, nn.Parameter]) -> Tensor:
        return weight * proximal_term(parameters, start)

    return penalty
