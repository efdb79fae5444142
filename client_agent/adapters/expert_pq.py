"""A bank of experts over P and Q: one bank for all architectures whose frames are aligned.

An expert is small: P (r, r) and Q (r,) per (block, role). A mixture of experts is one P and one Q per token.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import nn

from client_agent.adapters.base import LoraFactors
from client_agent.adapters.expert_bank import ExpertBank
from client_agent.adapters.expert_layers import ExpertPQLinear
from client_agent.adapters.frames import Frames
from client_agent.adapters.layers import PQCore
from client_agent.adapters.pq import framed_modules, joined_frames
from client_agent.errors import LayoutMismatch
from client_agent.model.loading import BaseModel
from schemas.maths.adapter import Layout, module_of, pq_layout
from schemas.messages.federations import AdapterPlan


class ExpertPQ(ExpertBank):
    """P, and Q unless the plan has no bias, of every framed (block, role), for each expert of a bank."""

    def __init__(self, base: BaseModel, plan: AdapterPlan, frames: Frames, experts: Sequence[int]) -> None:
        """Wrap the layers; P = Q = 0 of every expert.

        Raises:
            AdapterInPlace: the base model carries an adapter already.
            LayoutMismatch: the shared expert is missing, the plan has LoRA ranks beside P and Q, a frame does
                not match the plan or the model, or there is no frame.
        """
        super().__init__(base, experts)
        if plan.same_architecture_rank or plan.private_rank:
            raise LayoutMismatch(
                "experts over P and Q have no LoRA beside them; set same_architecture_rank and private_rank "
                "to 0"
            )
        self._layers: dict[str, ExpertPQLinear] = {}
        self._rates: dict[str, float] = {}
        for path, members in framed_modules(base, plan, frames).items():
            cores = {
                expert: [PQCore(plan.rank, base.device, gated=False, bias=plan.bias) for _ in members]
                for expert in self.experts
            }
            a, b = joined_frames(base, path, members, frames)
            layer = ExpertPQLinear(self._model.get_submodule(path), a, b, plan.scale, cores, self.mixture)
            self._layers[path] = layer
            for expert, expert_cores in cores.items():
                for name, core in zip(members, expert_cores, strict=True):
                    tensors = {f"{name}.{factor}": tensor for factor, tensor in core.branch().items()}
                    self._tensors[expert] |= tensors
            self._rates |= {name: frames[name].rate for name in members}
        self.expert_layout: Layout = pq_layout(self._rates, plan.rank, bias=plan.bias)
        for path, layer in self._layers.items():
            self._wrap(path, layer)
        self.select(())

    def parameter_groups(self, learning_rate: float) -> list[dict[str, Any]]:
        """Group the selected experts' parameters by frame: P and Q train at learning_rate * rate."""
        groups: dict[float, list[nn.Parameter]] = {}
        for expert in self.mixture.experts:
            for name, tensor in self._tensors[expert].items():
                groups.setdefault(self._rates[module_of(name)], []).append(tensor)
        return [{"params": tensors, "lr": learning_rate * rate} for rate, tensors in groups.items()]

    @torch.no_grad()
    def as_lora_of(self, weights: Mapping[int, float]) -> dict[str, LoraFactors]:
        """Return A, s B sum alpha_k P_k and the bias s B sum alpha_k Q_k, None without Q, by module path."""
        return {path: _weighed(layer, weights) for path, layer in self._layers.items()}


def _weighed(layer: ExpertPQLinear, weights: Mapping[int, float]) -> LoraFactors:
    factors = {expert: layer.factors(expert) for expert in weights}
    p = torch.stack([weights[expert] * p for expert, (p, _) in factors.items()]).sum(dim=0)
    qs = [weights[expert] * q for expert, (_, q) in factors.items() if q is not None]
    bias = (layer.scaled_B @ torch.stack(qs).sum(dim=0)).cpu().numpy() if qs else None
    return LoraFactors(np.array(layer.A.cpu().numpy()), (layer.scaled_B @ p).cpu().numpy(), bias)
