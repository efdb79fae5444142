"""Prune the last ranks of an adapter after a round in which they shrank."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from client_agent.adapters.base import Adapter
from client_agent.adapters.ranks import rank_of, resize_ranks
from schemas.maths.adapter import factor_of, module_of


def tail_size(parameters: Mapping[str, Tensor], first: int) -> Tensor:
    """Return sum over modules of |B[:, first:]| |A[first:]| (): float32, differentiable."""
    sizes = [
        torch.linalg.vector_norm(parameters[f"{module_of(name)}.B"][:, first:])
        * torch.linalg.vector_norm(a[first:])
        for name, a in parameters.items()
        if factor_of(name) == "A"
    ]
    return torch.stack(sizes).sum()


def tail_penalty(first: int, strength: float) -> Callable[[Mapping[str, nn.Parameter]], Tensor]:
    """Return the loss term that shrinks the ranks from `first` on."""
    return lambda parameters: strength * tail_size(parameters, first)


Arrays = dict[str, NDArray[np.float32]]


class Pruner:
    """Compares the size of an adapter's last ranks before and after a round's training.

    Args:
        target: returns the rank after pruning of an adapter's rank.
        strength: the weight of the penalty on the ranks that are to be pruned.
    """

    def __init__(self, adapter: Adapter, target: Callable[[int], int], strength: float) -> None:
        self._adapter = adapter
        self._rank = rank_of(adapter.state())
        self._target = target(self._rank)
        self.penalty = tail_penalty(self._target, strength)
        self._before = self._size()

    def pruned(self) -> Arrays:
        """Return the adapter's state after training, truncated and loaded if its last ranks shrank."""
        state = self._adapter.state()
        # The method of HetLoRA: ranks that training has not reduced are needed.
        if self._target == self._rank or self._size() >= self._before:
            return state
        # Zeros in the pruned ranks, so that what is scored next is what is sent.
        self._adapter.load(resize_ranks(resize_ranks(state, self._target), self._rank))
        return resize_ranks(state, self._target)

    def _size(self) -> float:
        state = {name: torch.from_numpy(values) for name, values in self._adapter.state().items()}
        return float(tail_size(state, self._target))
