"""Ordinary LoRA around the linear layers of a base model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from client_agent.adapters.base import (
    LoraFactors,
    State,
    WholeAdapter,
    copy_in,
    copy_out,
    replace_module,
    require_fit,
    side_by_side,
)
from client_agent.adapters.frames import present_layers
from client_agent.adapters.layers import BaseDeltaLinear, LoraLinear
from client_agent.errors import AdapterInPlace, LayoutMismatch
from client_agent.model.architectures import place_rows
from client_agent.model.loading import BaseModel
from schemas.maths.adapter import Layout, lora_module_layout
from schemas.maths.factors import Factors
from schemas.maths.start import first_a
from schemas.messages.federations import AdapterPlan

Arrays = dict[str, NDArray[np.float32]]


class LoraAdapter(WholeAdapter):
    """A and B of every (layer, role) of one base model."""

    def __init__(self, base: BaseModel, plan: AdapterPlan, *, seed: int) -> None:
        super().__init__(base)
        self._factor = plan.factor
        present = {name: base.parts.of(*place) for name, place in present_layers(base, plan).items()}
        served: dict[str, list[str]] = {}
        for name, linear in present.items():
            served.setdefault(linear.path, []).append(name)
        self._served = served
        self._base_delta: dict[str, LoraFactors] = {}
        self._rows = {name: linear.rows for name, linear in present.items()}
        self._layers: dict[str, LoraLinear] = {}
        self._tensors: dict[str, nn.Parameter] = {}
        for path, names in served.items():
            rows = [self._rows[name] for name in names]
            base_layer = self._model.get_submodule(path)
            layer = LoraLinear(base_layer, rows, plan.rank, plan.factor, plan.dropout)
            self._wrap(path, layer)
            self._layers[path] = layer
            for name, a, b in zip(names, layer.A, layer.B, strict=True):
                self._tensors |= {f"{name}.A": a, f"{name}.B": b}
        self.layout: Layout = lora_module_layout(
            {name: linear.shape for name, linear in present.items()}, plan.rank
        )
        self._start = {
            name: first_a(name, shape, seed).reshape(shape)
            for name, shape in self.layout.items()
            if name.endswith(".A")
        }
        self.load({name: np.zeros(shape, np.float32) for name, shape in self.layout.items()})

    def named_parameters(self) -> dict[str, nn.Parameter]:
        return dict(self._tensors)

    def parameter_groups(self, learning_rate: float) -> list[dict[str, Any]]:
        return [{"params": list(self._tensors.values()), "lr": learning_rate}]

    def state(self) -> Arrays:
        return copy_out(self._tensors)

    def load(self, state: State) -> None:
        """Set A and B of all ranks; a rank with A = B = 0 is initialised with the A drawn from the seed."""
        require_fit(self.layout, state)
        copy_in(self._tensors, initialize_zero_ranks(state, self._start))

    def load_global(self, state: State) -> None:
        raise AdapterInPlace("an ordinary LoRA has no global branch; use adapter.kind pq with mix gate")

    @torch.no_grad()
    def load_base_delta(self, base_delta: Mapping[str, Factors]) -> None:
        """Put the base delta, frozen and times the factor, beside A and B of each (layer, role).

        Raises:
            LayoutMismatch: a module is not adapted here, or has other widths.
        """
        widths = {name: (self.layout[f"{name}.B"][0], self.layout[f"{name}.A"][1]) for name in self._names()}
        for name, factors in base_delta.items():
            if widths.get(name) != (len(factors.B), factors.A.shape[1]):
                raise LayoutMismatch(
                    f"the base delta of {name} does not fit this base model and plan; "
                    "check that model is the base model that this client joined with"
                )
        for path, members in self._served.items():
            changed = [name for name in members if name in base_delta]
            layer = self._model.get_submodule(path)
            if isinstance(layer, BaseDeltaLinear):
                # The delta replaces the previous one, which it contains.
                layer = layer.base_layer
                replace_module(self._model, path, layer)
                del self._base_delta[path]
            if not changed:
                continue
            a = torch.from_numpy(np.concatenate([base_delta[name].A for name in changed]))
            # The adapter's factor is in the mean of products that the coordinator serves.
            factors_b = [self._factor * torch.from_numpy(base_delta[name].B) for name in changed]
            d_out = self._layers[path].out_features
            rows = [row_numbers for name in changed if (row_numbers := self._rows[name]) is not None]
            b = place_rows(factors_b, rows, d_out) if rows else factors_b[0]
            replace_module(self._model, path, BaseDeltaLinear(layer, a, b))
            self._base_delta[path] = LoraFactors(a.numpy(), b.numpy(), None)

    def _names(self) -> list[str]:
        return [name for members in self._served.values() for name in members]

    def paths(self) -> dict[str, str]:
        """Return the module path of each (layer, role).

        Raises:
            LayoutMismatch: a module serves several roles, so that one A and one B do not describe it.
        """
        fused = [path for path, members in self._served.items() if self._rows[members[0]] is not None]
        if fused:
            raise LayoutMismatch(
                f"{fused[0]} is one layer of several roles, whose LoRA in peft would have a rank of its own"
            )
        return {members[0]: path for path, members in self._served.items()}

    def as_lora(self) -> dict[str, LoraFactors]:
        """Return A and factor * B by module path, without bias and with the base delta's ranks appended.

        A module that serves n roles has n r ranks.
        """
        trained = {path: _factors(layer) for path, layer in self._layers.items()}
        return {
            path: side_by_side([factors, self._base_delta[path]]) if path in self._base_delta else factors
            for path, factors in trained.items()
        }


def initialize_zero_ranks(state: State, start: State) -> Arrays:
    """Copy `state` with the A of `start` in every rank where A = B = 0.

    The function stays the same, since B = 0. From A = B = 0 the gradient is zero, and zeros are served in the
    first round and pad an adapter of fewer ranks.
    """
    loaded = {**state}
    for name in start.keys() & state.keys():
        if name.endswith(".A"):
            # From A = B = 0 no gradient leads away. The function stays the same, because B = 0.
            alive = np.logical_or(state[name].any(axis=1), state[f"{name[:-1]}B"].any(axis=0))  # (r,)
            loaded[name] = np.where(np.expand_dims(alive, 1), state[name], start[name])
    return loaded


@torch.no_grad()
def _factors(layer: LoraLinear) -> LoraFactors:
    a, b = layer.factors()
    return LoraFactors(np.array(a.cpu().numpy()), np.array(b.cpu().numpy()), None)
