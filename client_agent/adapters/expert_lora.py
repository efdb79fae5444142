"""A bank of ordinary LoRA experts around the linear layers of a base model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from client_agent.adapters.base import LoraFactors, State, copy_in, require_fit, side_by_side
from client_agent.adapters.expert_bank import ExpertBank
from client_agent.adapters.expert_layers import ExpertLinear
from client_agent.adapters.frames import present_layers
from client_agent.adapters.lora import initialize_zero_ranks
from client_agent.model.loading import BaseModel
from schemas.maths.adapter import Layout, lora_module_layout
from schemas.maths.bank import expert_tensors, first_a_of
from schemas.messages.federations import AdapterPlan

Arrays = dict[str, NDArray[np.float32]]


class ExpertLora(ExpertBank):
    """A and B of every (layer, role) of one base model, for each expert of a bank."""

    def __init__(self, base: BaseModel, plan: AdapterPlan, experts: Sequence[int], *, seed: int) -> None:
        """Wrap the layers; A of every expert is drawn from (seed, expert), B is 0.

        Raises:
            AdapterInPlace: the base model carries an adapter already.
            LayoutMismatch: the shared expert is missing, or the model lacks a layer of the plan.
        """
        super().__init__(base, experts)
        present = {name: base.parts.of(*place) for name, place in present_layers(base, plan).items()}
        served: dict[str, list[str]] = {}
        for name, linear in present.items():
            # Roles of a fused layer share one path, and one layer of the adapter.
            served.setdefault(linear.path, []).append(name)
        self._layers: dict[str, ExpertLinear] = {}
        for path, names in served.items():
            rows = [present[name].rows for name in names]
            base_layer = self._model.get_submodule(path)
            layer = ExpertLinear(
                base_layer, rows, self.experts, plan.rank, plan.factor, plan.dropout, self.mixture
            )
            self._wrap(path, layer)
            self._layers[path] = layer
            for expert in self.experts:
                for name, (a, b) in zip(names, layer.pairs(expert), strict=True):
                    self._tensors[expert] |= {f"{name}.A": a, f"{name}.B": b}
        self.expert_layout: Layout = lora_module_layout(
            {name: linear.shape for name, linear in present.items()}, plan.rank
        )
        self._start = {expert: first_factors(self.expert_layout, seed, expert) for expert in self.experts}
        self.load({name: np.zeros(shape, np.float32) for name, shape in self.layout.items()})
        self.select(())

    def load(self, state: State) -> None:
        """Set all experts; a rank with A = B = 0 is initialised with the A drawn for its expert."""
        require_fit(self.layout, state)
        for expert, start in self._start.items():
            copy_in(self._tensors[expert], initialize_zero_ranks(expert_tensors(expert, state), start))

    @torch.no_grad()
    def as_lora_of(self, weights: Mapping[int, float]) -> dict[str, LoraFactors]:
        """Return the sum of weighed experts as one LoRA by module path; n e r ranks where n roles are."""
        return {
            path: side_by_side(_weighed(layer, expert, alpha) for expert, alpha in weights.items())
            for path, layer in self._layers.items()
        }


def first_factors(layout: Layout, seed: int, expert: int) -> Arrays:
    """Draw the A of an expert from (seed, expert), uniform in +-1/sqrt(d_in); `layout` has plain names."""
    return {
        name: first_a_of(expert, name, shape, seed) for name, shape in layout.items() if name.endswith(".A")
    }


def _weighed(layer: ExpertLinear, expert: int, alpha: float) -> LoraFactors:
    a, b = layer.factors(expert)
    return LoraFactors(np.array(a.cpu().numpy()), np.array((alpha * b).cpu().numpy()), None)
