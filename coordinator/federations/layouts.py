"""Decide which tensors a client has. Pure: plan, profile and the pack's choice in, names and shapes out."""

from __future__ import annotations

from collections.abc import Collection

from schemas.maths.adapter import Layout, lora_layout, pq_layout
from schemas.messages.enrolment import Profile
from schemas.messages.federations import FederationPlan, Role


def roles_of(plan: FederationPlan, profile: Profile) -> tuple[Role, ...]:
    """Give the plan's roles that a client's architecture has, in the plan's order."""
    return tuple(role for role in plan.adapter.roles if role in profile.roles)


def layout_of(plan: FederationPlan, profile: Profile, pack_selected: Collection[str] | None) -> Layout:
    """Lay out a client's adapter: the plan's roles that it has, minus what its alignment pack deselects.

    `pack_selected` are the (block, role)s that the client's pack shares, None while there is no pack; in a
    federation with alignment a client without a pack has no layout yet: {}.
    """
    if plan.alignment is not None and pack_selected is None:
        return {}
    roles = roles_of(plan, profile)
    if plan.adapter.kind == "pq":
        return pq_layout(plan.adapter.blocks, roles, plan.adapter.rank, selected=pack_selected)
    shapes = profile.shapes or {}
    return lora_layout(profile.layers, {role: shapes[role] for role in roles}, plan.adapter.rank)
