"""Decide whether a client fits a federation's plan. Pure: knows no token and no database."""

from __future__ import annotations

from coordinator.errors import FederationStateConflict, Forbidden, Invalid
from coordinator.strategies.opening import OpenedPlan
from schemas.maths.adapter import SIGNATURE, Layout, in_order, lora_layout, pq_layout, size
from schemas.messages.enrolment import Profile
from schemas.messages.federations import FederationPlan
from schemas.messages.updates import UpdateManifest
from schemas.wire.budget import followed, shortfall
from schemas.wire.envelope import head
from schemas.wire.header import HEADER_LIMIT

_FLOAT32_BYTES = 4
# The least that a header says of a tensor: its name, type, shape and offsets.
_ENTRY_BYTES = 50
_DIGEST = f"sha256:{0:064}"
_LARGEST_COUNT = 2**31 - 1
_LONGEST_ID = "x" * 64


def admit(opened: OpenedPlan, state: str, profile: Profile, *, with_key: bool) -> None:
    """Let a client in, or say what is wrong; `with_key` it signs its requests.

    Raises:
        FederationStateConflict: the federation is neither open nor running.
        Forbidden: the plan takes no bearer clients.
        Invalid: the client's model cannot carry the plan's adapter.
    """
    plan, strategy = opened.plan, opened.strategy
    if state not in ("open", "running"):
        raise FederationStateConflict(state=state)
    if not with_key and not plan.privacy.allow_bearer_clients:
        raise Forbidden("this federation takes no bearer clients: enrol with a public_key")
    if plan.adapter.blocks > profile.layers:
        raise Invalid(
            f"a model of {profile.layers} layers has no {plan.adapter.blocks} blocks", field="profile.layers"
        )
    roles = [role for role in plan.adapter.roles if role in profile.roles]
    if not roles:
        raise Invalid("the model has none of the plan's roles", field="profile.roles")
    if plan.adapter.kind == "pq" and not plan.adapter.modules(roles):
        raise Invalid("the model has none of the plan's target_modules", field="profile.roles")
    if plan.adapter.travelling_lora_rank:
        missing = [role for role in roles if role not in (profile.shapes or {})]
        if missing:
            raise Invalid(f"LoRA tensors need the shapes of {', '.join(missing)}", field="profile.shapes")
        known = profile.shapes or {}
        shapes: dict[str, tuple[int, int]] = {role: known[role] for role in roles}
        _check_number(
            (4 if opened.traits.base_delta else 2) * profile.layers * len(roles), field="profile.shapes"
        )
        layout = lora_layout(profile.layers, shapes, plan.adapter.travelling_lora_rank)
        if plan.adapter.kind == "pq":
            layout |= pq_layout(plan.adapter.modules(roles), plan.adapter.rank)
        layout |= strategy.beside(layout)
        _check_size(plan, in_order(layout), field="profile.shapes")
        layout = {name: shape for name, shape in layout.items() if strategy.travels(name)}
        _check_budget(opened, in_order(layout), field="profile.shapes")


def check_adapter(plan: FederationPlan) -> None:
    """Check that an adapter that is the same for every client can travel; LoRA tensors differ by client.

    Raises:
        Invalid: it has too many tensors or values.
    """
    if plan.adapter.kind == "pq":
        layout = pq_layout(plan.adapter.modules(plan.adapter.roles), plan.adapter.rank)
        _check_size(plan, layout, field="adapter")


def check_budget(opened: OpenedPlan) -> None:
    """Check that updates of an adapter that is the same for every client can have as few bytes as planned.

    Raises:
        Invalid: they have more.
    """
    adapter = opened.plan.adapter
    if adapter.kind == "pq":
        layout = pq_layout(adapter.modules(adapter.roles), adapter.rank)
        _check_budget(opened, layout, field="wire.max_bytes")


def _check_number(tensors: int, *, field: str) -> None:
    if tensors * _ENTRY_BYTES > HEADER_LIMIT:
        raise Invalid(f"{tensors} tensors do not fit in a header of {HEADER_LIMIT} bytes", field=field)


def _check_size(plan: FederationPlan, layout: Layout, *, field: str) -> None:
    """Check that the largest body of a layout, a dense float32 update with a signature, can travel."""
    said = UpdateManifest(
        federation=_LONGEST_ID,
        recipe={},
        round=_LARGEST_COUNT,
        client=_LONGEST_ID,
        base=_DIGEST,
        pack=_DIGEST,
        examples=_LARGEST_COUNT,
    )
    sent = layout | {SIGNATURE: (plan.signature.dim,)}
    beginning = len(head(sent, said))
    if beginning > HEADER_LIMIT:
        raise Invalid(f"{len(layout)} tensors do not fit in a header of {HEADER_LIMIT} bytes", field=field)
    total, limit = beginning + size(sent) * _FLOAT32_BYTES, plan.limits.max_update_bytes
    if total > limit:
        raise Invalid(f"an update would have {total} bytes; limits.max_update_bytes is {limit}", field=field)


def _check_budget(opened: OpenedPlan, layout: Layout, *, field: str) -> None:
    """Check that updates of a layout can keep to the plan's bytes, the way that its strategy sends them."""
    wire, traits = opened.plan.wire, opened.traits
    recipe, offers = followed(wire.recipe, begins_anew=traits.base_delta, ranks_differ=traits.mixed_ranks)
    refusal = shortfall(layout, recipe, wire.max_bytes, offers)
    if refusal is not None:
        raise Invalid(refusal, field=field)
