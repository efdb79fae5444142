"""Remove the last ranks of an adapter in a round in which they became smaller."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from client_agent.adapters.base import Adapter
from client_agent.strategies.base import Pruning
from schemas.maths.adapter import at_rank, factor_of, module_of
from schemas.maths.factors import Factors


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


Arrays = dict[str, NDArray[np.float32]]


class Pruner:
    """Watches the last ranks of an adapter from before a round's training to its end."""

    def __init__(self, adapter: Adapter, pruning: Pruning) -> None:
        self._adapter = adapter
        self._rank = rank_of(adapter.state())
        self._kept = pruning.target(self._rank)
        self.penalty = drawn_to_zero(self._kept, pruning.strength)
        self._before = self._size()

    def pruned(self) -> Arrays:
        """Give the adapter after training, of fewer ranks where it prunes, and let it act as it is given."""
        state = self._adapter.state()
        if self._kept == self._rank or self._size() >= self._before:
            return state
        self._adapter.load(of_rank(of_rank(state, self._kept), self._rank))
        return of_rank(state, self._kept)

    def _size(self) -> float:
        state = {name: torch.from_numpy(values) for name, values in self._adapter.state().items()}
        return float(tail(state, self._kept))


def rank_of(state: Mapping[str, NDArray[np.float32]]) -> int:
    """Give the rank of A and B, which is one for all modules."""
    return next(len(values) for name, values in state.items() if factor_of(name) == "A")


def of_rank(state: Mapping[str, NDArray[np.float32]], rank: int) -> Arrays:
    """Give the first ranks of all A and B, or as many with zeros behind them."""
    made: Arrays = {}
    for name, values in state.items():
        if factor_of(name) == "A":
            one = Factors(values, state[f"{module_of(name)}.B"]).of_rank(rank)
            made |= {name: one.A, f"{module_of(name)}.B": one.B}
    return {name: made[name] for name in at_rank({n: v.shape for n, v in state.items()}, rank)}
