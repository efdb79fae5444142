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
from schemas.maths.blocks import adapted_layers, block_ends
from schemas.messages.enrolment import Profile
from schemas.messages.federations import AdapterPlan, Role


def roles_of(plan: AdapterPlan, profile: Profile) -> tuple[Role, ...]:
    """Return the plan's roles that a client's architecture has, in the plan's order."""
    return tuple(role for role in plan.roles if role in profile.roles)


def block_layers(plan: AdapterPlan, depth: int) -> tuple[int, ...]:
    """Return the layer of each block of a model of `depth` layers that carries P and Q: its last one.

    Raises:
        ValueError: the model lacks a layer of the plan, or has fewer than blocks.
    """
    chosen = adapted_layers(plan.layers, depth)
    return tuple(chosen[end] for end in block_ends(len(chosen), plan.blocks))


def layers_with(role: Role, profile: Profile, plan: AdapterPlan) -> list[int]:
    """Return the layers of a client's model that have a role and are the plan's.

    Raises:
        ValueError: the model lacks a layer of the plan.
    """
    chosen = adapted_layers(plan.layers, profile.layers)
    if role not in profile.layer_shapes:
        return list(chosen)
    # Roles that not every layer has are listed by runs of layers.
    runs = [range(first, last + 1) for first, last, *_ in profile.layer_shapes[role]]
    return [layer for layer in chosen if any(layer in run for run in runs)]


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
        ValueError: the model lacks a layer of the plan.
    """
    shapes: dict[str, tuple[int, int]] = {}
    for role in roles_of(plan, profile):
        for layer in layers_with(role, profile, plan):
            shape = shape_in(layer, role, profile)
            if shape is None:
                raise KeyError(role)
            shapes[layer_module_name(layer, role)] = shape
    return shapes


def block_roles(plan: AdapterPlan, profile: Profile) -> tuple[str, ...]:
    """Return the plan's (block, role)s whose layer has the role in a client's model, blocks first.

    Raises:
        ValueError: the model lacks a layer of the plan, or has fewer than blocks.
    """
    ends = block_layers(plan, profile.layers)
    layers = {role: set(layers_with(role, profile, plan)) for role in roles_of(plan, profile)}
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
            does not limit LoRA tensors, which are those of every layer of the plan.
        travels: the strategy's choice of the tensors that are sent.
        beside: the tensors that the strategy adds to those.

    Raises:
        ValueError: the model lacks a layer of the plan, or has fewer than blocks.
    """
    tensors: Layout = {}
    if plan.kind == "pq":
        modules = (name for name in block_roles(plan, profile) if framed is None or name in framed)
        tensors |= pq_layout(modules, plan.rank, bias=plan.bias)
    if plan.travelling_lora_rank:
        tensors |= lora_module_layout(module_shapes(plan, profile), plan.travelling_lora_rank)
    travelling = {name: shape for name, shape in tensors.items() if travels(name)}
    return in_order(travelling | beside(travelling))
