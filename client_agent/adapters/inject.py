"""Put the adapter that a plan asks for around a base model; leaving its context takes it away again."""

from __future__ import annotations

from client_agent.adapters.base import Adapter, require_bare
from client_agent.adapters.frames import Frames
from client_agent.adapters.lora import LoraAdapter
from client_agent.adapters.partial_lora import PartLora, Parts
from client_agent.adapters.pq import PQAdapter
from client_agent.adapters.pq_with_lora import ComposedAdapter
from client_agent.model.loading import BaseModel
from client_agent.strategies.base import AgentStrategy
from schemas.messages.federations import AdapterPlan


def inject(
    base: BaseModel, plan: AdapterPlan, frames: Frames, *, gated: bool, seed: int, parts: Parts | None = None
) -> Adapter:
    """Put what `plan.kind` says around the base model.

    `frames` and `gated` are of PQ-LoRA alone, `parts` of ordinary LoRA: None = all of it trains and travels.

    Raises:
        AdapterInPlace, LayoutMismatch: as `inject_pq` and `inject_lora` say.
    """
    if plan.kind == "lora":
        lora = inject_lora(base, plan, seed=seed)
        return PartLora(lora, parts) if parts is not None else lora
    return inject_pq(base, plan, frames, gated=gated, seed=seed)


def inject_pq(base: BaseModel, plan: AdapterPlan, frames: Frames, *, gated: bool, seed: int = 0) -> Adapter:
    """Wrap the (block, role) that have a frame in PQ-LoRA layers, P = Q = 0, and what is beside them.

    With `same_architecture_rank` or `private_rank` every (layer, role) carries an ordinary LoRA too, even
    where no (block, role) has a frame.

    Raises:
        AdapterInPlace: the base model carries an adapter already.
        LayoutMismatch: a frame has another rank or width than plan and model, or there is nothing to inject.
    """
    require_bare(base)
    if not plan.same_architecture_rank and not plan.private_rank:
        return PQAdapter(base, plan, frames, gated=gated)
    around = (lambda: PQAdapter(base, plan, frames, gated=gated)) if frames else None
    return ComposedAdapter(base, plan, seed=seed, around=around)


def inject_lora(base: BaseModel, plan: AdapterPlan, *, seed: int = 0) -> LoraAdapter:
    """Wrap every layer's linear layers of the plan's roles in ordinary LoRA, B = 0, A from the seed.

    Raises:
        AdapterInPlace: the base model carries an adapter already.
    """
    return LoraAdapter(base, plan, seed=seed)


def parts_of(strategy: AgentStrategy) -> Parts | None:
    """Say what of an ordinary LoRA a strategy lets travel and train; None = all."""
    return Parts(strategy.travels, strategy.trains) if strategy.traits.part_travels else None
