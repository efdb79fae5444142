"""A bank of ordinary LoRA experts around the linear layers of a base model.

Tensors are named `x<k>.<tensor>` with k the expert's ordinal: `x0.l3.q.A` of the shared expert. An ordinal is
never used again, so that a name means the same expert for ever.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from client_agent.adapters.base import (
    LoraFactors,
    Removable,
    State,
    copy_in,
    copy_out,
    replace_module,
    require_bare,
    require_fit,
    side_by_side,
)
from client_agent.adapters.expert_layers import ExpertLinear, Mixture
from client_agent.adapters.frames import present_layers
from client_agent.adapters.lora import initialize_zero_ranks
from client_agent.errors import AdapterInPlace, LayoutMismatch
from client_agent.model.loading import BaseModel
from schemas.maths.adapter import Layout, in_order, lora_module_layout
from schemas.maths.bank import SHARED, bank_tensor, first_a_of, split_bank_tensor
from schemas.messages.federations import AdapterPlan

Arrays = dict[str, NDArray[np.float32]]


def of_expert(expert: int, tensors: Mapping[str, Any]) -> dict[str, Any]:
    """Return the tensors of an expert under their names in a bank: `l0.q.A` -> `x2.l0.q.A`."""
    return {bank_tensor(expert, name): value for name, value in tensors.items()}


def expert_tensors(expert: int, bank: Mapping[str, Any]) -> dict[str, Any]:
    """Return the tensors of an expert of a bank under their plain names: `x2.l0.q.A` -> `l0.q.A`."""
    prefix = bank_tensor(expert, "")
    return {name[len(prefix) :]: value for name, value in bank.items() if name.startswith(prefix)}


def experts_in(names: Iterable[str]) -> tuple[int, ...]:
    """Return the ordinals of the experts of which there are tensors, in order.

    Raises:
        LayoutMismatch: a name is not of a bank.
    """
    experts: set[int] = set()
    for name in names:
        if (place := split_bank_tensor(name)) is None:
            raise LayoutMismatch(f"{name} is no tensor of a bank of experts; load those of a bank")
        experts.add(place[0])
    return tuple(sorted(experts))


def is_bank(names: Iterable[str]) -> bool:
    """Whether tensors are of a bank of experts."""
    return any(split_bank_tensor(name) is not None for name in names)


class ExpertLora(Removable):
    """A and B of every (layer, role) of one base model, for each expert of a bank.

    All experts are in the model; those of `select` act and train. After the injection that is the shared one.
    """

    def __init__(self, base: BaseModel, plan: AdapterPlan, experts: Sequence[int], *, seed: int) -> None:
        """Wrap the layers; A of every expert is drawn from (seed, expert), B is 0.

        Raises:
            AdapterInPlace: the base model carries an adapter already.
            LayoutMismatch: the shared expert is missing, or the model lacks a layer of the plan.
        """
        require_bare(base)
        self.experts = tuple(sorted(set(experts)))
        if self.experts[:1] != (SHARED,):
            raise LayoutMismatch(f"the bank {self.experts} lacks the shared expert {SHARED}; add it")
        self._model = cast(nn.Module, base.model)
        present = {name: base.parts.of(*place) for name, place in present_layers(base, plan).items()}
        served: dict[str, list[str]] = {}
        for name, linear in present.items():
            served.setdefault(linear.path, []).append(name)
        self.mixture = Mixture()
        self._layers: dict[str, ExpertLinear] = {}
        self._tensors: dict[int, dict[str, nn.Parameter]] = {expert: {} for expert in self.experts}
        for path, names in served.items():
            rows = [present[name].rows for name in names]
            base_layer = self._model.get_submodule(path)
            layer = ExpertLinear(
                base_layer, rows, self.experts, plan.rank, plan.factor, plan.dropout, self.mixture
            )
            replace_module(self._model, path, layer)
            self._layers[path] = layer
            for expert in self.experts:
                for name, (a, b) in zip(names, layer.pairs(expert), strict=True):
                    self._tensors[expert] |= {f"{name}.A": a, f"{name}.B": b}
        self.expert_layout: Layout = lora_module_layout(
            {name: linear.shape for name, linear in present.items()}, plan.rank
        )
        self.layout: Layout = in_order(
            {name: shape for k in self.experts for name, shape in of_expert(k, self.expert_layout).items()}
        )
        self._start = {expert: first_factors(self.expert_layout, seed, expert) for expert in self.experts}
        self.load({name: np.zeros(shape, np.float32) for name, shape in self.layout.items()})
        self.select(())

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
            raise LayoutMismatch(f"expert {absent[0]} is no specialist of the bank {self.experts}")
        self.mixture.experts = (SHARED, *specialists)
        self.weigh(weights)

    def weigh(self, weights: Tensor | None) -> None:
        """Set the weights of the selected specialists; see `select`."""
        if weights is None:
            self.mixture.weights = None
            return
        shared = weights.new_ones(*weights.shape[:-1], 1)
        self.mixture.weights = torch.cat([shared, weights], dim=-1)

    def named_parameters(self) -> dict[str, nn.Parameter]:
        """Return the parameters of the selected experts: the others have no gradient."""
        return {
            name: tensor
            for expert in self.mixture.experts
            for name, tensor in of_expert(expert, self._tensors[expert]).items()
        }

    def parameter_groups(self, learning_rate: float) -> list[dict[str, Any]]:
        return [{"params": list(self.named_parameters().values()), "lr": learning_rate}]

    def state(self) -> Arrays:
        """Copy the tensors of all experts."""
        return copy_out(self._all())

    def load(self, state: State) -> None:
        """Set all experts; a rank with A = B = 0 is initialised with the A drawn for its expert."""
        require_fit(self.layout, state)
        for expert, start in self._start.items():
            tensors = initialize_zero_ranks(expert_tensors(expert, state), start)
            copy_in(self._tensors[expert], tensors)

    def load_global(self, state: State) -> None:
        raise AdapterInPlace("a bank of experts has no global branch; use a plan without mix gate")

    def private_state(self) -> Arrays:
        return {}

    def load_private(self, state: State) -> None:
        copy_in({}, state)

    def merged_state(self) -> Arrays:
        return self.state()

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

    @torch.no_grad()
    def as_lora_of(self, weights: Mapping[int, float]) -> dict[str, LoraFactors]:
        """Return the sum of weighed experts as one LoRA by module path; n e r ranks where n roles are."""
        return {
            path: side_by_side(_weighed(layer, expert, alpha) for expert, alpha in weights.items())
            for path, layer in self._layers.items()
        }

    def remove(self) -> None:
        for path, layer in self._layers.items():
            replace_module(self._model, path, layer.base_layer)
        self._layers.clear()

    def _all(self) -> dict[str, nn.Parameter]:
        return {n: t for k, tensors in self._tensors.items() for n, t in of_expert(k, tensors).items()}


def first_factors(layout: Layout, seed: int, expert: int) -> Arrays:
    """Draw the A of an expert from (seed, expert), uniform in +-1/sqrt(d_in); `layout` has plain names."""
    return {
        name: first_a_of(expert, name, shape, seed) for name, shape in layout.items() if name.endswith(".A")
    }


def _weighed(layer: ExpertLinear, expert: int, alpha: float) -> LoraFactors:
    a, b = layer.factors(expert)
    return LoraFactors(np.array(a.cpu().numpy()), np.array((alpha * b).cpu().numpy()), None)
