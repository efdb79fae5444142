"""Put the adapter that a plan asks for around a base model; leaving its context takes it away again."""

from __future__ import annotations

from client_agent.model.adapter import Adapter
from client_agent.model.frames import Frames
from client_agent.model.loading import BaseModel
from client_agent.model.lora_adapter import LoraAdapter
from client_agent.model.pq_adapter import PQAdapter
from schemas.messages.federations import AdapterPlan


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
