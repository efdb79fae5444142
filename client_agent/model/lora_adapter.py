"""Ordinary LoRA around a base model, in peft's layers: every layer's linear layers. Trains nothing."""

from __future__ import annotations

from math import sqrt
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray
from torch import nn

from client_agent.errors import AdapterInPlace
from client_agent.model.adapter import Removable, State, copy_in, copy_out, replace_module, require_bare
from client_agent.model.draws import uniform
from client_agent.model.frames import present_roles
from client_agent.model.loading import BaseModel
from schemas.maths.adapter import Layout, lora_layout
from schemas.messages.federations import AdapterPlan

Arrays = dict[str, NDArray[np.float32]]


class LoraAdapter(Removable):
    """A and B of every (layer, role) of one base model, in peft's layers."""

    def __init__(self, base: BaseModel, plan: AdapterPlan, *, seed: int) -> None:
        from peft import LoraConfig, inject_adapter_in_model  # seconds to import

        require_bare(base)
        self._model = cast(nn.Module, base.model)
        roles = present_roles(base, plan)
        paths = {
            f"l{layer}.{role}": base.parts.path(layer, role) for layer in range(base.layers) for role in roles
        }
        self._inner = {name: (path, self._model.get_submodule(path)) for name, path in paths.items()}
        config = LoraConfig(
            r=plan.rank,
            lora_alpha=cast(int, plan.scale * plan.rank),  # peft scales by lora_alpha / r; fractions work
            target_modules=list(paths.values()),
            init_lora_weights=False,
        )
        inject_adapter_in_model(config, self._model)
        self._tensors: dict[str, nn.Parameter] = {}
        for name, path in paths.items():
            layer = cast(Any, self._model.get_submodule(path))
            for side, linear in (("A", layer.lora_A["default"]), ("B", layer.lora_B["default"])):
                linear.float()
                self._tensors[f"{name}.{side}"] = linear.weight
        self.layout: Layout = lora_layout(base.layers, {role: base.shapes[role] for role in roles}, plan.rank)
        self._start = {name: self._first_a(name, seed) for name in self._tensors if name.endswith(".A")}
        self.load({name: np.zeros(shape, np.float32) for name, shape in self.layout.items()})

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
        """Set A and B. A pair that is zero altogether gets the A of the start.

        The function is the same, since B = 0; but from A = B = 0 no gradient would ever arise, and zeros are
        what the first round serves.
        """
        dead = {
            name
            for name in self._start.keys() & state.keys()
            if not state[name].any() and not state.get(f"{name[:-1]}B", state[name]).any()
        }
        copy_in(self._tensors, {**state, **{name: self._start[name] for name in dead}})

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

    def remove(self) -> None:
        """Put the original linear layers back."""
        for path, inner in self._inner.values():
            replace_module(self._model, path, inner)
        self._inner.clear()
        if hasattr(self._model, "peft_config"):
            del self._model.peft_config

    def _first_a(self, name: str, seed: int) -> NDArray[np.float32]:
        """Draw A as a linear layer's weight is drawn: uniform in +-1/sqrt(d_in)."""
        r, d_in = self.layout[name]
        return uniform((r, d_in), 1 / sqrt(d_in), "lora", seed, name)
