"""Put an adapter around a base model and take it away again. Decides which modules, not how they train.

PQ-LoRA wraps the last layer of each block (fedmosaic.md section 2): tensors are named by block ordinal and
role, never by layer number, so that models of any depth agree. Ordinary LoRA wraps every layer.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from math import sqrt
from types import TracebackType
from typing import Any, Self, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from client_agent.errors import AdapterInPlace, LayoutMismatch
from client_agent.model.adapter import Adapter, State, copy_in, copy_out, replace_module
from client_agent.model.draws import uniform
from client_agent.model.frames import Frame, Frames, present_roles, wrapped_layers
from client_agent.model.loading import BaseModel
from client_agent.model.pq_layer import PQLinear
from schemas.maths.adapter import Layout, lora_layout, module_name, pq_layout
from schemas.messages.federations import AdapterPlan

Arrays = dict[str, NDArray[np.float32]]


def inject_pq(base: BaseModel, plan: AdapterPlan, frames: Frames, *, gated: bool) -> Adapter:
    """Wrap the (block, role) that have a frame in PQ-LoRA layers, P = Q = 0.

    Raises:
        AdapterInPlace: the base model carries an adapter already.
        LayoutMismatch: a frame has another rank or width than plan and model, or there is none at all.
    """
    return PQAdapter(base, plan, frames, gated=gated)


def inject_lora(base: BaseModel, plan: AdapterPlan, *, seed: int = 0) -> Adapter:
    """Wrap every layer's linear layers of the plan's roles in ordinary LoRA, B = 0, A from the seed.

    Raises:
        AdapterInPlace: the base model carries an adapter already.
    """
    return LoraAdapter(base, plan, seed=seed)


def require_bare(base: BaseModel) -> None:
    """Make sure that no adapter is in place.

    Raises:
        AdapterInPlace: one is.
    """
    if hasattr(base.model, "peft_config") or any(isinstance(m, PQLinear) for m in base.model.modules()):
        raise AdapterInPlace(
            f"{base.slug} carries an adapter where the bare model is needed; leave that adapter first"
        )


def _check_frame(frame: Frame, name: str, rank: int, shape: tuple[int, int]) -> None:
    d_out, d_in = shape
    if frame.A.shape != (rank, d_in) or frame.B.shape != (d_out, rank):
        raise LayoutMismatch(
            f"the frame of {name} is for rank {frame.A.shape[0]} and a layer {frame.B.shape[0]} x "
            f"{frame.A.shape[1]}, and this model needs rank {rank} and {d_out} x {d_in}; "
            "is the alignment pack that of this base model and plan?"
        )


class _Removable(ABC):
    """A context whose end is `remove`."""

    @abstractmethod
    def remove(self) -> None:
        """Put the original modules back."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.remove()


class PQAdapter(_Removable):
    """P and Q (and gates) of every framed (block, role) of one base model."""

    def __init__(self, base: BaseModel, plan: AdapterPlan, frames: Frames, *, gated: bool) -> None:
        require_bare(base)
        self._model = cast(nn.Module, base.model)
        self._gated = gated
        self._layers: dict[str, PQLinear] = {}
        self._paths: dict[str, str] = {}
        self._rates: dict[str, float] = {}
        roles = present_roles(base, plan)
        for block, end in enumerate(wrapped_layers(base, plan)):
            for role in roles:
                name = module_name(block, role)
                if name in frames:
                    frame = frames[name]
                    _check_frame(frame, name, plan.rank, base.shapes[role])
                    a, b = (torch.tensor(part, device=base.device) for part in (frame.A, frame.B))
                    path = base.parts.path(end, role)
                    inner = self._model.get_submodule(path)
                    self._layers[name] = PQLinear(inner, a, b, plan.scale, gated=gated)
                    self._paths[name] = path
                    self._rates[name] = frame.rate
        if not self._layers:
            raise LayoutMismatch(
                "no (block, role) of the plan has a frame: the alignment pack selects nothing; have the "
                "operator raise alignment.max_error, choose another pivot, or leave alignment out"
            )
        self.layout: Layout = pq_layout(plan.blocks, roles, plan.rank, selected=self._layers)
        for name, layer in self._layers.items():
            replace_module(self._model, self._paths[name], layer)

    def named_parameters(self) -> dict[str, nn.Parameter]:
        """Give every P and Q, and every gate."""
        return {**self._shared(), **self._gates()}

    def parameter_groups(self, learning_rate: float) -> list[dict[str, Any]]:
        """Group by frame: P, Q and gate of a frame train at learning_rate * its rate; gates do not decay."""
        groups: dict[tuple[float, bool], list[nn.Parameter]] = {}
        for name, layer in self._layers.items():
            groups.setdefault((self._rates[name], True), []).extend((layer.P, layer.Q))
            if self._gated:
                groups.setdefault((self._rates[name], False), []).append(layer.gate)
        return [
            {"params": parameters, "lr": learning_rate * rate, **({} if decays else {"weight_decay": 0.0})}
            for (rate, decays), parameters in groups.items()
        ]

    def state(self) -> Arrays:
        """Copy P (r, r) and Q (r,) of every (block, role)."""
        return copy_out(self._shared())

    def load(self, state: State) -> None:
        """Set P and Q of every (block, role)."""
        copy_in(self._shared(), state)

    def load_global(self, state: State) -> None:
        """Set the frozen global P and Q beside the local ones."""
        if not self._gated:
            raise AdapterInPlace("the adapter has no global branch; inject it with gated=True to load one")
        targets = {f"{name}.P": layer.P_global for name, layer in self._layers.items()}
        copy_in(targets | {f"{name}.Q": layer.Q_global for name, layer in self._layers.items()}, state)

    def private_state(self) -> Arrays:
        """Copy the gates, `b0.q.gate` with shape (); none without a global branch."""
        return copy_out(self._gates())

    def load_private(self, state: State) -> None:
        """Set the gates."""
        copy_in(self._gates(), state)

    def merged_state(self) -> Arrays:
        """Give P = (1-b) P_L + b P_G and Q likewise: what acts (fedmosaic.md section 2)."""
        merged = {name: layer.merged() for name, layer in self._layers.items()}
        tensors = {f"{name}.P": p for name, (p, _) in merged.items()}
        return copy_out(tensors | {f"{name}.Q": q for name, (_, q) in merged.items()})

    def remove(self) -> None:
        """Put the original linear layers back."""
        for name, path in self._paths.items():
            replace_module(self._model, path, self._layers[name].base_layer)
        self._paths.clear()

    def _shared(self) -> dict[str, nn.Parameter]:
        tensors = {f"{name}.P": layer.P for name, layer in self._layers.items()}
        return tensors | {f"{name}.Q": layer.Q for name, layer in self._layers.items()}

    def _gates(self) -> dict[str, nn.Parameter]:
        return {f"{name}.gate": layer.gate for name, layer in self._layers.items()} if self._gated else {}


class LoraAdapter(_Removable):
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
