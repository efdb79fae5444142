"""Compute the layout of a client's adapter from the plan, the client's profile and its alignment pack.
Pure.
"""

from __future__ import annotations

from collections.abc import Collection

from coordinator.strategies.opening import OpenedPlan
from schemas.maths.adapter import Layout, in_order, lora_layout, pq_layout
from schemas.messages.enrolment import Profile
from schemas.messages.federations import FederationPlan, Role


def roles_of(plan: FederationPlan, profile: Profile) -> tuple[Role, ...]:
    """Return the plan's roles that a client's architecture has, in the plan's order."""
    return tuple(role for role in plan.adapter.roles if role in profile.roles)


def layout_of(opened: OpenedPlan, profile: Profile, pack_selected: Collection[str] | None) -> Layout:
    """Compute the tensors of a client's adapter: the plan's modules without those that its pack deselects.

    A pack selects P and Q only: LoRA tensors that travel cover every layer. The strategy may keep some of the
    tensors local, or add tensors of its own.

    Args:
        pack_selected: (block, role)s that the client's pack shares; None without a pack. In a federation
            with alignment, a client without a pack has an empty layout.
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
