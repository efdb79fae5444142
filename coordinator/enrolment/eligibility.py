"""Decide whether a client is eligible for a federation's plan. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from coordinator.enrolment.body_sizes import check_bodies, check_depth, check_pack
from coordinator.errors import (
    CapabilityMissing,
    FederationStateConflict,
    Forbidden,
    Invalid,
    TokenizerMismatch,
)
from coordinator.strategies.opening import OpenedPlan
from schemas.maths.adapter import Layout, pq_layout
from schemas.maths.blocks import adapted_layers
from schemas.maths.layout import block_roles, client_layout, roles_of
from schemas.messages import private_training
from schemas.messages.enrolment import Profile, TokenizerDigests
from schemas.messages.federations import AdapterPlan, FederationPlan
from schemas.messages.secure_sum import ANY_FORMAT, CAPABILITY
from schemas.messages.training import ANCHOR_PULL
from schemas.wire.budget import shortfall


def check_eligible(opened: OpenedPlan, state: str, profile: Profile, *, has_key: bool) -> None:
    """Raise unless a client is eligible; with `has_key` it signs its requests.

    Raises:
        FederationStateConflict: the federation is neither open nor running.
        Forbidden: the plan does not allow bearer clients.
        Invalid: the client's model cannot carry the plan's adapter.
        CapabilityMissing: the agent would ignore a part of the plan.
    """
    plan, options = opened.plan, opened.options
    if state not in ("open", "running"):
        raise FederationStateConflict(state=state)
    if not has_key and not plan.privacy.allow_bearer_clients:
        raise Forbidden("this federation does not allow bearer clients; enrol with a public_key")
    check_capability(plan, profile)
    _check_layers(plan.adapter, profile)
    roles = roles_of(plan.adapter, profile)
    if not roles:
        raise Invalid("the model has none of the plan's roles; use another model", field="profile.roles")
    if plan.adapter.kind == "pq" and not block_roles(plan.adapter, profile):
        raise Invalid(
            "the model has none of the plan's target_modules; use another model", field="profile.roles"
        )
    if plan.adapter.travelling_lora_rank:
        shaped_roles = {*(profile.shapes or {}), *profile.layer_shapes}
        missing = [role for role in roles if role not in shaped_roles]
        if missing:
            raise Invalid(
                f"the profile has no shapes of {', '.join(missing)}; LoRA tensors need them",
                field="profile.shapes",
            )
        check_depth(opened, profile, field="profile.shapes")
        layout = client_layout(plan.adapter, profile, None, travels=options.travels, beside=options.beside)
        check_bodies(plan, layout, base_delta=options.base_delta, field="profile.shapes")
        _check_budget(opened, layout, field="profile.shapes")
    check_pack(plan, profile)


def check_tokenizer(profile: Profile, members: Iterable[TokenizerDigests]) -> None:
    """Raise if a client's tokenizer differs from that of a member with the same base model.

    A profile without digests is not compared.

    Raises:
        TokenizerMismatch: a part differs that both report.
    """
    if profile.tokenizer is None:
        return
    # Adapters of such clients would be averaged although they are trained on other tokens of one text.
    parts = sorted({part for member in members for part in profile.tokenizer.differing(member)})
    if parts == ["chat_template"]:
        raise TokenizerMismatch(
            f"members with the base model {profile.base_model} render chats with another chat template; "
            "agree on one, and set it with chat_template in silo.toml, or on the model's own",
            parts=[*parts],
        )
    if parts:
        raise TokenizerMismatch(
            f"members with the base model {profile.base_model} have a tokenizer that differs in "
            f"{', '.join(parts)}; use the tokenizer files of the same published model, or ask the operator "
            "to revoke the members with the other tokenizer",
            parts=[*parts],
        )


def _check_layers(adapter: AdapterPlan, profile: Profile) -> None:
    try:
        layers = len(adapted_layers(adapter.layers, profile.layers))
    except ValueError as error:
        raise Invalid(
            f"{error}, and the plan's adapter.layers has; use a deeper model, or ask the operator for a plan "
            "with other adapter.layers",
            field="profile.layers",
        ) from error
    if adapter.kind == "pq" and adapter.blocks > layers:
        raise Invalid(
            f"a model of {profile.layers} layers cannot carry the plan's {adapter.blocks} blocks; use a "
            "deeper model, or ask the operator for a plan with fewer blocks",
            field="profile.layers",
        )


def check_capability(plan: FederationPlan, profile: Profile) -> None:
    """Raise if an agent would ignore a part of the plan.

    Raises:
        CapabilityMissing: updates are summed, training is private, or it is pulled to the bare model, and the
            agent's profile does not name that.
    """
    if plan.privacy.secure_sum is not None:
        check_format(profile.capabilities)
    if plan.privacy.training is not None:
        _require(profile, private_training.CAPABILITY, "trains with differential privacy (privacy.training)")
    if plan.training.anchor_pull:
        _require(profile, ANCHOR_PULL, "bounds what its clients' models forget (training.anchor_pull)")


def _require(profile: Profile, capability: str, action: str) -> None:
    if capability not in profile.capabilities:
        raise CapabilityMissing(
            f"this federation {action}, which this agent would leave out; install a newer agent",
            needed=capability,
        )


def check_enrolled_capability(profile: Profile) -> None:
    """Raise unless a member's agent could take part in sums, in any format, when it enrolled.

    It may have been upgraded since: its format is checked when it is ready.

    Raises:
        CapabilityMissing: its profile names no format of sessions.
    """
    if not any(capability.startswith(ANY_FORMAT) for capability in profile.capabilities):
        check_format(profile.capabilities)


def check_format(formats: Collection[str]) -> None:
    """Raise unless an agent speaks the format of this coordinator's sessions.

    Raises:
        CapabilityMissing: it does not.
    """
    if CAPABILITY not in formats:
        raise CapabilityMissing(
            f"this federation sums updates (privacy.secure_sum) in the format {CAPABILITY}, which this agent "
            "does not support; install a newer agent",
            needed=CAPABILITY,
        )


def check_adapter(plan: FederationPlan) -> None:
    """Raise unless an adapter that is the same for every client fits the limits; LoRA adapters differ by
    client.

    Raises:
        Invalid: it has too many tensors or values.
    """
    if plan.adapter.kind == "pq":
        check_bodies(plan, _pq(plan.adapter), base_delta=False, field="adapter")


def check_budget(opened: OpenedPlan) -> None:
    """Raise unless updates of an adapter that is the same for every client fit the byte budget.

    Raises:
        Invalid: they are larger.
    """
    adapter = opened.plan.adapter
    if adapter.kind == "pq":
        layout = _pq(adapter)
        _check_budget(opened, layout, field="wire.max_bytes")


def _pq(adapter: AdapterPlan) -> Layout:
    return pq_layout(adapter.modules(), adapter.rank, bias=adapter.bias)


def _check_budget(opened: OpenedPlan, layout: Layout, *, field: str) -> None:
    """Raise unless updates of a layout fit the plan's byte budget."""
    wire = opened.plan.wire
    refusal = shortfall(layout, wire.recipe, wire.max_bytes)
    if refusal is not None:
        raise Invalid(refusal, field=field)
