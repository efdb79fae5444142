"""Put a bank of experts around a base model: a new one, or one that a client has trained."""

from __future__ import annotations

from collections.abc import Sequence

from client_agent.adapters.base import require_bare
from client_agent.adapters.expert_bank import ExpertBank
from client_agent.adapters.expert_lora import ExpertLora
from client_agent.adapters.expert_pq import ExpertPQ
from client_agent.adapters.frames import Frames, first_adapted_layer
from client_agent.experts.routed import RoutedExperts
from client_agent.experts.routing import Routing
from client_agent.model.loading import BaseModel
from schemas.messages.federations import AdapterPlan


def inject_experts(
    base: BaseModel, plan: AdapterPlan, frames: Frames, experts: Sequence[int], routing: Routing, *, seed: int
) -> RoutedExperts:
    """Wrap the linear layers of the plan in a bank of experts, whose function is that of the base model.

    They are LoRA with B = 0, or P = Q = 0 between `frames`, as the plan's kind.

    Raises:
        AdapterInPlace: the base model carries an adapter already.
        LayoutMismatch: the model or the frames do not fit the plan, or the bank has too few specialists.
    """
    require_bare(base)
    base.prefix.split_at(base, first_adapted_layer(base, plan, frames))
    bank: ExpertBank = (
        ExpertLora(base, plan, experts, seed=seed)
        if plan.kind == "lora"
        else ExpertPQ(base, plan, frames, experts)
    )
    try:
        return RoutedExperts(bank, base, routing)
    except BaseException:
        bank.remove()
        raise
