"""Derive the tensors that a client sends from its plan, profile and alignment pack."""

from __future__ import annotations

from collections.abc import Callable, Collection

from schemas.maths.adapter import (
    Layout,
    in_order,
    layer_module_name,
    lora_module_layout,
    module_name,
    pq_layout,
)
from schemas.maths.blocks import block_ends
from schemas.messages.enrolment import Profile
from schemas.messages.federations import AdapterPlan, Role


def roles_of(plan: AdapterPlan, profile: Profile) -> tuple[Role, ...]:
    """Return the plan's roles that a client's architecture has, in the plan's order."""
    return tuple(role for role in plan.roles if role in profile.roles)


def layers_with(role: Role, profile: Profile) -> list[int]:
    """Return the layers of a client's model that have a role."""
    if role not in profile.layer_shapes:
        return list(range(profile.layers))
    return [layer for first, last, *_ in profile.layer_shapes[role] for layer in range(first, last + 1)]


def shape_in(layer: int, role: Role, profile: Profile) -> tuple[int, int] | None:
    """Return (d_out, d_in) of a role in a layer of a client's model; None = it has none, or it is unknown."""
    for first, last, d_out, d_in in profile.layer_shapes.get(role, ()):
        if first <= layer <= last:
            return d_out, d_in
    return (profile.shapes or {}).get(role)


def module_shapes(plan: AdapterPlan, profile: Profile) -> dict[str, tuple[int, int]]:
    """Return (d_out, d_in) of each (layer, role) of a plan that a client's model has.

    Raises:
        KeyError: the profile has no shapes of a role.
    """
    shapes: dict[str, tuple[int, int]] = {}
    for role in roles_of(plan, profile):
        if role in profile.layer_shapes:
            for first, last, d_out, d_in in profile.layer_shapes[role]:
                shapes |= {layer_module_name(n, role): (d_out, d_in) for n in range(first, last + 1)}
        else:
            shape = (profile.shapes or {})[role]
            shapes |= {layer_module_name(n, role): shape for n in range(profile.layers)}
    return shapes


def block_roles(plan: AdapterPlan, profile: Profile) -> tuple[str, ...]:
    """Return the plan's (block, role)s whose layer has the role in a client's model, blocks first.

    Raises:
        ValueError: the model has fewer layers than the plan has blocks.
    """
    ends = block_ends(profile.layers, plan.blocks)
    layers = {role: set(layers_with(role, profile)) for role in roles_of(plan, profile)}
    return plan.modules(
        {
            module_name(block, role)
            for block, layer in enumerate(ends)
            for role, present in layers.items()
            if layer in present
        }
    )


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
    tensors: Layout = {}
    if plan.kind == "pq":
        modules = (name for name in block_roles(plan, profile) if framed is None or name in framed)
        tensors |= pq_layout(modules, plan.rank, bias=plan.bias)
    if plan.travelling_lora_rank:
        tensors |= lora_module_layout(module_shapes(plan, profile), plan.travelling_lora_rank)
    travelling = {name: shape for name, shape in tensors.items() if travels(name)}
    return in_order(travelling | beside(travelling))
