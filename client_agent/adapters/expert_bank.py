"""The common part of banks of experts, independent of the tensors of an expert.

Tensors are named `x<k>.<tensor>` with k the expert's ordinal: `x0.l3.q.A` of the shared expert. An ordinal is
never used again, so that a name always means the same expert.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from client_agent.adapters.base import (
    LoraFactors,
    State,
    WholeAdapter,
    copy_in,
    copy_out,
    require_fit,
)
from client_agent.adapters.expert_layers import Mixture
from client_agent.errors import AdapterInPlace, LayoutMismatch
from client_agent.model.loading import BaseModel
from schemas.maths.adapter import Layout, in_order
from schemas.maths.bank import SHARED, bank_tensors, split_bank_tensor

Arrays = dict[str, NDArray[np.float32]]


def experts_in(names: Iterable[str]) -> tuple[int, ...]:
    """Return the ordinals of the experts of which there are tensors, in order.

    Raises:
        LayoutMismatch: a name is not of a bank.
    """
    experts: set[int] = set()
    for name in names:
        if (place := split_bank_tensor(name)) is None:
            raise LayoutMismatch(f"{name} is not a tensor of a bank of experts; load the tensors of a bank")
        experts.add(place[0])
    return tuple(sorted(experts))


def is_bank(names: Iterable[str]) -> bool:
    """Whether tensors are of a bank of experts."""
    return any(split_bank_tensor(name) is not None for name in names)


class ExpertBank(WholeAdapter):
    """The experts of a bank around the linear layers of one base model.

    All experts are in the model; those of `select` act and train. After the injection that is the shared one.

    Attributes:
        experts: the ordinals of all experts, the shared one first.
        expert_layout: names and shapes of an expert's tensors, without the expert's prefix.
        trains_shared: whether the shared expert trains beside the selected ones.
    """

    def __init__(self, base: BaseModel, experts: Sequence[int]) -> None:
        """Check the bank, before layers are wrapped.

        Raises:
            AdapterInPlace: the base model carries an adapter already.
            LayoutMismatch: the shared expert is missing.
        """
        super().__init__(base)
        self.experts = tuple(sorted(set(experts)))
        if self.experts[:1] != (SHARED,):
            raise LayoutMismatch(f"the bank {self.experts} lacks the shared expert {SHARED}; add it")
        self.mixture = Mixture()
        self._tensors: dict[int, dict[str, nn.Parameter]] = {expert: {} for expert in self.experts}
        self.expert_layout: Layout = {}
        self.trains_shared = True

    @abstractmethod
    def as_lora_of(self, weights: Mapping[int, float]) -> dict[str, LoraFactors]:
        """Return the sum of weighed experts as one LoRA by module path."""

    @property
    def layout(self) -> Layout:
        """Names and shapes of the tensors of all experts."""
        tensors = (bank_tensors(expert, self.expert_layout) for expert in self.experts)
        return in_order({name: shape for layout in tensors for name, shape in layout.items()})

    @property
    def specialists(self) -> tuple[int, ...]:
        """The selected experts but the shared one."""
        return self.mixture.experts[1:]

    @property
    def specialist_weights(self) -> Tensor | None:
        """The weights that `select` or `weigh` set."""
        weights = self.mixture.weights
        return weights[..., 1:] if weights is not None else None

    def select(self, specialists: Sequence[int], weights: Tensor | None = None) -> None:
        """Make the shared expert and these specialists act and train, in this order.

        `weights`: of the specialists, (e,) or (n, t, e) by token; None = 1 each. The shared expert has 1.

        Raises:
            LayoutMismatch: the bank has no such expert.
        """
        absent = [expert for expert in specialists if expert not in self.experts or expert == SHARED]
        if absent:
            raise LayoutMismatch(f"the bank {self.experts} has no specialist {absent[0]}")
        self.mixture.experts = (SHARED, *specialists)
        self.weigh(weights)

    def weigh(self, weights: Tensor | None) -> None:
        """Set the weights of the selected specialists; see `select`."""
        if weights is None:
            self.mixture.weights = None
            return
        # The shared expert has weight 1 beside any specialists.
        shared = weights.new_ones(*weights.shape[:-1], 1)
        self.mixture.weights = torch.cat([shared, weights], dim=-1)

    def named_parameters(self) -> dict[str, nn.Parameter]:
        """Return the parameters of the selected experts that train: the others have no gradient."""
        return {
            name: tensor
            # The others have no gradient, which the check of gradients would report.
            for expert in self.mixture.experts
            if expert != SHARED or self.trains_shared
            for name, tensor in bank_tensors(expert, self._tensors[expert]).items()
        }

    def parameter_groups(self, learning_rate: float) -> list[dict[str, Any]]:
        return [{"params": list(self.named_parameters().values()), "lr": learning_rate}]

    def state(self) -> Arrays:
        """Copy the tensors of all experts."""
        return copy_out(self._all())

    def load(self, state: State) -> None:
        """Set the tensors of all experts."""
        require_fit(self.layout, state)
        copy_in(self._all(), state)

    def load_global(self, state: State) -> None:
        raise AdapterInPlace("a bank of experts has no global branch; use a plan without mix gate")

    def as_lora(self) -> dict[str, LoraFactors]:
        """Return the selected experts side by side by module path: [A_0; A_k], [s B_0, s alpha_k B_k].

        Raises:
            AdapterInPlace: the weights differ by token, so that no ordinary LoRA is equivalent.
        """
        weights = self.mixture.weights
        if weights is not None and weights.ndim > 1:
            raise AdapterInPlace(
                "the experts are weighed by token, which no ordinary LoRA can hold; export it as routed"
            )
        alphas = [1.0] * len(self.mixture.experts) if weights is None else weights.tolist()
        return self.as_lora_of(dict(zip(self.mixture.experts, alphas, strict=True)))

    def _all(self) -> dict[str, nn.Parameter]:
        return {n: t for k, tensors in self._tensors.items() for n, t in bank_tensors(k, tensors).items()}
