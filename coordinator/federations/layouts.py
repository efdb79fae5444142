"""Decide which tensors a client has. Pure: plan, profile and the pack's choice in, names and shapes out."""

from __future__ import annotations

from collections.abc import Collection

from coordinator.strategies.opening import OpenedPlan
from schemas.maths.adapter import Layout, in_order, lora_layout, pq_layout
from schemas.messages.enrolment import Profile
from schemas.messages.federations import FederationPlan, Role


def roles_of(plan: FederationPlan, profile: Profile) -> tuple[Role, ...]:
    """Give the plan's roles that a client's architecture has, in the plan's order."""
    return tuple(role for role in plan.adapter.roles if role in profile.roles)


def layout_of(opened: OpenedPlan, profile: Profile, pack_selected: Collection[str] | None) -> Layout:
    """Lay out a client's adapter: the plan's modules that it has, minus what its alignment pack deselects.

    A pack speaks of P and Q alone: LoRA tensors that travel are those of every layer, whatever it selects;
    of these the strategy may leave some at home, or let more travel beside them.
    `pack_selected` are the (block, role)s that the client's pack shares, None while there is no pack; in a
    federation with alignment a client without a pack has no layout yet: {}.
    """
    plan, strategy = opened.plan, opened.strategy
    if plan.alignment is not None and pack_selected is None:
        return {}
    roles, adapter = roles_of(plan, profile), plan.adapter
    tensors: Layout = {}
    if adapter.kind == "pq":
        modules = adapter.modules(roles)
        shared = [name for name in modules if pack_selected is None or name in pack_selected]
        tensors |= pq_layout(shared, adapter.rank)
    if adapter.travelling_lora_rank:
        shapes = profile.shapes or {}
        tensors |= lora_layout(
            profile.layers, {role: shapes[role] for role in roles}, adapter.travelling_lora_rank
        )
    tensors = {name: shape for name, shape in tensors.items() if strategy.travels(name)}
    tensors |= strategy.beside(tensors)
    return in_order(tensors)
