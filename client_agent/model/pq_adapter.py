"""PQ-LoRA around a base model: which modules it wraps, what of it travels, what stays. Trains nothing.

It wraps the last layer of each block (fedmosaic.md section 2): tensors are named by block ordinal and role,
never by layer number, so that models of any depth agree.
"""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from client_agent.errors import AdapterInPlace, LayoutMismatch
from client_agent.model.adapter import Removable, State, copy_in, copy_out, replace_module, require_bare
from client_agent.model.frames import Frame, Frames, present_roles, wrapped_layers
from client_agent.model.loading import BaseModel
from client_agent.model.pq_layer import PQLinear
from schemas.maths.adapter import Layout, module_name, pq_layout
from schemas.messages.federations import AdapterPlan

Arrays = dict[str, NDArray[np.float32]]


class PQAdapter(Removable):
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


def _check_frame(frame: Frame, name: str, rank: int, shape: tuple[int, int]) -> None:
    d_out, d_in = shape
    if frame.A.shape != (rank, d_in) or frame.B.shape != (d_out, rank):
        raise LayoutMismatch(
            f"the frame of {name} is for rank {frame.A.shape[0]} and a layer {frame.B.shape[0]} x "
            f"{frame.A.shape[1]}, and this model needs rank {rank} and {d_out} x {d_in}; "
            "is the alignment pack that of this base model and plan?"
        )
