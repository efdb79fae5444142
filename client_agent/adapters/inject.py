"""Put the adapter of a plan around a base model."""

from __future__ import annotations

from client_agent.adapters.base import Adapter, require_bare
from client_agent.adapters.frames import Frames, first_adapted_layer
from client_agent.adapters.lora import LoraAdapter
from client_agent.adapters.pq import PQAdapter
from client_agent.adapters.pq_with_lora import ComposedAdapter
from client_agent.model.loading import BaseModel
from schemas.messages.federations import AdapterPlan


def inject(base: BaseModel, plan: AdapterPlan, frames: Frames, *, gated: bool, seed: int) -> Adapter:
    """Wrap the base model in the adapter of `plan.kind`; `frames` and `gated` apply to PQ-LoRA only.

    Raises:
        AdapterInPlace, LayoutMismatch: see `inject_pq` and `inject_lora`.
    """
    if plan.kind == "lora":
        return inject_lora(base, plan, seed=seed)
    return inject_pq(base, plan, frames, gated=gated, seed=seed)


def inject_pq(base: BaseModel, plan: AdapterPlan, frames: Frames, *, gated: bool, seed: int = 0) -> Adapter:
    """Wrap every (block, role) with a frame in PQ-LoRA layers, P = Q = 0, and add the plan's LoRA ranks.

    With `same_architecture_rank` or `private_rank` every (layer, role) also carries an ordinary LoRA, even
    if no (block, role) has a frame.

    Raises:
        AdapterInPlace: the base model carries an adapter already.
        LayoutMismatch: a frame does not match the plan's rank or the model's widths, or there is no frame.
    """
    require_bare(base)
    base.prefix.split_at(base, first_adapted_layer(base, plan, frames))
    if not plan.same_architecture_rank and not plan.private_rank:
        return PQAdapter(base, plan, frames, gated=gated)
    # Called by the composed adapter once its LoRA is in place, since P and Q go around it.
    wrap = (lambda: PQAdapter(base, plan, frames, gated=gated)) if frames else None
    return ComposedAdapter(base, plan, seed=seed, inject_pq=wrap)


def inject_lora(base: BaseModel, plan: AdapterPlan, *, seed: int = 0) -> LoraAdapter:
    """Wrap the linear layers of the plan's roles and layers in ordinary LoRA; B = 0, A from the seed.

    Raises:
        AdapterInPlace: the base model carries an adapter already.
        LayoutMismatch: the model lacks a layer of the plan.
    """
    require_bare(base)
    base.prefix.split_at(base, first_adapted_layer(base, plan, {}))
    return LoraAdapter(base, plan, seed=seed)
