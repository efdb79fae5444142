"""Ordinary LoRA around a base model, in peft's layers: every layer's linear layers. Trains nothing."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from transformers.pytorch_utils import Conv1D

from client_agent.errors import AdapterInPlace
from client_agent.model.adapter import (
    LoraFactors,
    Removable,
    State,
    copy_in,
    copy_out,
    replace_module,
    require_bare,
)
from client_agent.model.frames import present_roles
from client_agent.model.loading import BaseModel
from client_agent.model.lora_layer import FusedLora
from schemas.maths.adapter import Layout, layer_module_name, lora_layout
from schemas.maths.start import first_a
from schemas.messages.federations import AdapterPlan, Role

Arrays = dict[str, NDArray[np.float32]]


class LoraAdapter(Removable):
    """A and B of every (layer, role) of one base model: in peft's layers, or in ours where fused."""

    def __init__(self, base: BaseModel, plan: AdapterPlan, *, seed: int) -> None:
        require_bare(base)
        self._model = cast(nn.Module, base.model)
        self._scale = plan.scale
        roles = present_roles(base, plan)
        served: dict[str, dict[str, Role]] = {}
        for layer in range(base.layers):
            for role in roles:
                served.setdefault(base.parts.path(layer, role), {})[layer_module_name(layer, role)] = role
        self._inner = {path: self._model.get_submodule(path) for path in served}
        self._fused: dict[str, FusedLora] = {}
        self._single: dict[str, str] = {}
        for path, members in served.items():
            if any(base.parts.is_fused(role) for role in members.values()):
                rows = [base.parts.rows(self._model, role) for role in members.values()]
                self._fused[path] = FusedLora(self._inner[path], rows, plan.rank, plan.scale)
            else:
                (self._single[path],) = members
        self._tensors = self._inject_single(plan) if self._single else {}
        for path, wrapper in self._fused.items():
            replace_module(self._model, path, wrapper)
            for name, a, b in zip(served[path], wrapper.A, wrapper.B, strict=True):
                self._tensors |= {f"{name}.A": a, f"{name}.B": b}
        self.layout: Layout = lora_layout(base.layers, {role: base.shapes[role] for role in roles}, plan.rank)
        self._start = {
            name: first_a(name, shape, seed).reshape(shape)
            for name, shape in self.layout.items()
            if name.endswith(".A")
        }
        self.load({name: np.zeros(shape, np.float32) for name, shape in self.layout.items()})

    def _inject_single(self, plan: AdapterPlan) -> dict[str, nn.Parameter]:
        """Put peft's layers around the linear layers that serve one role."""
        from peft import LoraConfig, inject_adapter_in_model  # seconds to import

        config = LoraConfig(
            r=plan.rank,
            lora_alpha=cast(int, plan.scale * plan.rank),  # peft scales by lora_alpha / r; fractions work
            target_modules=list(self._single),
            init_lora_weights=False,
            fan_in_fan_out=any(isinstance(self._inner[path], Conv1D) for path in self._single),
        )
        inject_adapter_in_model(config, self._model)
        tensors: dict[str, nn.Parameter] = {}
        for path, name in self._single.items():
            layer = cast(Any, self._model.get_submodule(path))
            for side, linear in (("A", layer.lora_A["default"]), ("B", layer.lora_B["default"])):
                linear.float()
                tensors[f"{name}.{side}"] = linear.weight
        return tensors

    def named_parameters(self) -> dict[str, nn.Parameter]:
        """Give every A and B."""
        return dict(self._tensors)

    def parameter_groups(self, learning_rate: float) -> list[dict[str, Any]]:
        """Give one group: all of them train at `learning_rate`."""
        return [{"params": list(self._tensors.values()), "lr": learning_rate}]

    def state(self) -> Arrays:
        """Copy A (r, d_in) and B (d_out, r) of every (layer, role)."""
        return copy_out(self._tensors)

    def load(self, state: State) -> None:
        """Set A and B. A pair that is zero altogether gets the A of the start."""
        copy_in(self._tensors, revived(state, self._start))

    def load_global(self, state: State) -> None:
        """Refuse: ordinary LoRA has no frozen factors that two branches could share."""
        raise AdapterInPlace("an ordinary LoRA has no global branch; use adapter.kind pq with mix gate")

    def private_state(self) -> Arrays:
        """Give nothing: all of it travels."""
        return {}

    def load_private(self, state: State) -> None:
        """Accept nothing but nothing."""
        copy_in({}, state)

    def merged_state(self) -> Arrays:
        """Give the state: there is one branch."""
        return self.state()

    def as_lora(self) -> dict[str, LoraFactors]:
        """Give A and scale * B of every module, without bias; of rank n r where it serves n roles."""
        state, scale = self.state(), np.float32(self._scale)
        single = {
            path: LoraFactors(state[f"{name}.A"], scale * state[f"{name}.B"], None)
            for path, name in self._single.items()
        }
        return single | {path: _factors(wrapper) for path, wrapper in self._fused.items()}

    def remove(self) -> None:
        """Put the original linear layers back."""
        for path, inner in self._inner.items():
            replace_module(self._model, path, inner)
        self._inner.clear()
        if hasattr(self._model, "peft_config"):
            del self._model.peft_config


def revived(state: State, start: State) -> Arrays:
    """Give pairs A, B that are zero altogether the A of `start`; leave the others as they are.

    The function is the same, since B = 0; but from A = B = 0 no gradient would ever arise, and zeros are
    what the first round serves.
    """
    dead = {
        name
        for name in start.keys() & state.keys()
        if not state[name].any() and not state.get(f"{name[:-1]}B", state[name]).any()
    }
    return {**state, **{name: start[name] for name in dead}}


@torch.no_grad()
def _factors(wrapper: FusedLora) -> LoraFactors:
    a, b = wrapper.factors()
    return LoraFactors(np.array(a.cpu().numpy()), np.array(b.cpu().numpy()), None)
