"""PQ-LoRA around the last layer of each block of a base model (FedMosaic, arXiv 2506.11024).

Tensors are named by block ordinal and role, never by layer number, so that names agree across depths.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from client_agent.adapters.base import AdapterBase, LoraFactors, State, copy_in, copy_out, replace_module
from client_agent.adapters.frames import Frame, Frames, present_modules
from client_agent.adapters.layers import PQCore, PQLinear
from client_agent.errors import AdapterInPlace, LayoutMismatch
from client_agent.model.architectures import linear_shape, place_rows
from client_agent.model.loading import BaseModel
from schemas.maths.adapter import Layout, pq_layout
from schemas.messages.federations import AdapterPlan

Arrays = dict[str, NDArray[np.float32]]
SomeTensor = TypeVar("SomeTensor", bound=torch.Tensor)


class PQAdapter(AdapterBase):
    """P, Q unless the plan has no bias, and gates of every framed (block, role) of one base model."""

    def __init__(self, base: BaseModel, plan: AdapterPlan, frames: Frames, *, gated: bool) -> None:
        self._model = cast(nn.Module, base.model)
        self._gated = gated
        self._layers: dict[str, PQLinear] = {}
        self._cores: dict[str, PQCore] = {}
        self._rates: dict[str, float] = {}
        for path, members in framed_modules(base, plan, frames).items():
            cores = {name: PQCore(plan.rank, base.device, gated=gated, bias=plan.bias) for name in members}
            # A layer that serves several roles, such as a fused q, k, v, has one wrapper with all their
            # ranks.
            a, b = joined_frames(base, path, members, frames)
            base_layer = self._model.get_submodule(path)
            self._layers[path] = PQLinear(base_layer, a, b, plan.scale, cores=[*cores.values()])
            self._cores |= cores
            self._rates |= {name: frames[name].rate for name in members}
        self.layout: Layout = pq_layout(self._cores, plan.rank, bias=plan.bias)
        for path, layer in self._layers.items():
            replace_module(self._model, path, layer)

    def named_parameters(self) -> dict[str, nn.Parameter]:
        return {**self._shared(), **self._gates()}

    def parameter_groups(self, learning_rate: float) -> list[dict[str, Any]]:
        """Group parameters by frame: P, Q and gate train at learning_rate * rate; gates do not decay."""
        groups: dict[tuple[float, bool], list[nn.Parameter]] = {}
        for name, core in self._cores.items():
            groups.setdefault((self._rates[name], True), []).extend(core.branch().values())
            if self._gated:
                # Weight decay would pull a gate towards one half, which no data asks for.
                groups.setdefault((self._rates[name], False), []).append(core.gate)
        return [
            {"params": parameters, "lr": learning_rate * rate, **({} if decays else {"weight_decay": 0.0})}
            for (rate, decays), parameters in groups.items()
        ]

    def state(self) -> Arrays:
        return copy_out(self._shared())

    def load(self, state: State) -> None:
        copy_in(self._shared(), state)

    def load_global(self, state: State) -> None:
        if not self._gated:
            raise AdapterInPlace("the adapter has no global branch; inject it with gated=True to load one")
        copy_in(_by_name({name: core.global_branch() for name, core in self._cores.items()}), state)

    def private_state(self) -> Arrays:
        """Copy the gates, `b0.q.gate` with shape (); empty without a global branch."""
        return copy_out(self._gates())

    def load_private(self, state: State) -> None:
        copy_in(self._gates(), state)

    def merged_state(self) -> Arrays:
        """Return P = (1-b) P_L + b P_G and Q likewise."""
        return copy_out(_by_name({name: core.merged() for name, core in self._cores.items()}))

    def as_lora(self) -> dict[str, LoraFactors]:
        """Return A, s B P and the bias s B Q, None without Q, by module path.

        The rank is n r where a module serves n roles.
        """
        return {path: _factors(layer) for path, layer in self._layers.items()}

    def remove(self) -> None:
        for path, layer in self._layers.items():
            replace_module(self._model, path, layer.base_layer)
        self._layers.clear()

    def _shared(self) -> dict[str, nn.Parameter]:
        return _by_name({name: core.branch() for name, core in self._cores.items()})

    def _gates(self) -> dict[str, nn.Parameter]:
        return {f"{name}.gate": core.gate for name, core in self._cores.items()} if self._gated else {}


def framed_modules(base: BaseModel, plan: AdapterPlan, frames: Frames) -> dict[str, dict[str, torch.Tensor]]:
    """Return the framed (block, role)s by path of their linear layer, each with its output rows.

    Raises:
        LayoutMismatch: a frame does not match the plan's rank or the model's widths, or there is no frame.
    """
    placed: dict[str, dict[str, torch.Tensor]] = {}
    for name, number, role in present_modules(base, plan):
        if name in frames:
            _check_frame(frames[name], name, plan.rank, base.parts.of(number, role).shape)
            rows = base.parts.row_numbers(number, role).to(base.device)
            placed.setdefault(base.parts.path(number, role), {})[name] = rows
    if not placed:
        raise LayoutMismatch(
            "no (block, role) of the plan has a frame: the alignment pack selects none; ask the "
            "operator to raise alignment.max_error, choose another pivot, or leave alignment out"
        )
    return placed


def joined_frames(
    base: BaseModel, path: str, members: Mapping[str, torch.Tensor], frames: Frames
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return A (n r, d_in) and B (d_out, n r) of a layer's n (block, role)s, given with their rows."""
    a = torch.cat([torch.tensor(frames[name].A, device=base.device) for name in members])
    b = [torch.tensor(frames[name].B, device=base.device) for name in members]
    d_out, _ = linear_shape(base.model.get_submodule(path))
    return a, place_rows(b, [*members.values()], d_out)


def _by_name(factors: Mapping[str, Mapping[str, SomeTensor]]) -> dict[str, SomeTensor]:
    """Return the tensors of all modules by name: `b0.q.P`."""
    return {
        f"{module}.{factor}": tensor
        for module, tensors in factors.items()
        for factor, tensor in tensors.items()
    }


@torch.no_grad()
def _factors(layer: PQLinear) -> LoraFactors:
    p, q = layer.merged()
    bias = (layer.scaled_B @ q).cpu().numpy() if q is not None else None
    return LoraFactors(np.array(layer.A.cpu().numpy()), (layer.scaled_B @ p).cpu().numpy(), bias)


def _check_frame(frame: Frame, name: str, rank: int, shape: tuple[int, int]) -> None:
    d_out, d_in = shape
    if frame.A.shape != (rank, d_in) or frame.B.shape != (d_out, rank):
        raise LayoutMismatch(
            f"the frame of {name} is for rank {frame.A.shape[0]} and a layer {frame.B.shape[0]} x "
            f"{frame.A.shape[1]}; this model needs rank {rank} and {d_out} x {d_in}; "
            "use the alignment pack of this base model and plan"
        )
