"""Put a bank of experts around a base model: a new one, or one that a client has trained."""

from __future__ import annotations

from collections.abc import Sequence

from client_agent.adapters.base import State, require_bare
from client_agent.adapters.expert_bank import ExpertBank, experts_in
from client_agent.adapters.expert_lora import ExpertLora
from client_agent.adapters.expert_pq import ExpertPQ
from client_agent.adapters.frames import Frames, first_adapted_layer
from client_agent.errors import LayoutMismatch
from client_agent.experts.routed import CHOSEN, GAMMA, RoutedExperts
from client_agent.model.loading import BaseModel
from client_agent.strategies.base import Routing
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


def reopened_experts(
    base: BaseModel, plan: AdapterPlan, frames: Frames, state: State, private: State, *, seed: int
) -> RoutedExperts:
    """Wrap the base model in a bank as it was trained, with the choice and the router of its private tensors.

    Raises:
        AdapterInPlace: the base model carries an adapter already.
        LayoutMismatch: the tensors are of no bank, or do not fit the model and the plan.
    """
    if CHOSEN not in private or GAMMA not in private:
        raise LayoutMismatch("the bank lacks the choice of its client; pass a file that was trained here")
    routing = Routing(top_m=len(private[CHOSEN]) + 1, gamma=float(private[GAMMA]))
    adapter = inject_experts(base, plan, frames, experts_in(state), routing, seed=seed)
    try:
        adapter.load(state)
        adapter.load_private(private)
    except BaseException:
        adapter.remove()
        raise
    return adapter
