"""Derive the tensors that a client sends from its plan, profile and alignment pack."""

from __future__ import annotations

from collections.abc import Callable, Collection

from schemas.maths.adapter import Layout, in_order, lora_layout, pq_layout
from schemas.messages.enrolment import Profile
from schemas.messages.federations import AdapterPlan, Role


def roles_of(plan: AdapterPlan, profile: Profile) -> tuple[Role, ...]:
    """Return the plan's roles that a client's architecture has, in the plan's order."""
    return tuple(role for role in plan.roles if role in profile.roles)


def client_layout(
    plan: AdapterPlan,
    profile: Profile,
    framed: Collection[str] | None,
    *,
    travels: Callable[[str], bool] = lambda _: True,
    beside: Callable[[Layout], Layout] = lambda _: {},
) -> Layout:
    """Return the layout of a client's update.

    Args:
        framed: the (block, role)s that the client's alignment pack selects; None = every one of the plan. It
            does not limit LoRA tensors, which are those of every layer.
        travels: the strategy's choice of the tensors that are sent.
        beside: the tensors that the strategy adds to those.
    """
    roles = roles_of(plan, profile)
    tensors: Layout = {}
    if plan.kind == "pq":
        modules = (name for name in plan.modules(roles) if framed is None or name in framed)
        tensors |= pq_layout(modules, plan.rank, bias=plan.bias)
    if plan.travelling_lora_rank:
        shapes = profile.shapes or {}
        tensors |= lora_layout(
            profile.layers, {role: shapes[role] for role in roles}, plan.travelling_lora_rank
        )
    travelling = {name: shape for name, shape in tensors.items() if travels(name)}
    return in_order(travelling | beside(travelling))
