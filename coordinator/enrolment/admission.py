"""Decide whether a client fits a federation's plan. Pure: knows no token and no database."""

from __future__ import annotations

from coordinator.errors import FederationStateConflict, Forbidden, Invalid
from schemas.messages.enrolment import Profile
from schemas.messages.federations import FederationPlan


def admit(plan: FederationPlan, state: str, profile: Profile) -> None:
    """Let a client in, or say what is wrong.

    Raises:
        FederationStateConflict: the federation is neither open nor running.
        Forbidden: the plan takes no clients with bearer credentials.
        Invalid: the client's model cannot carry the plan's adapter.
    """
    if state not in ("open", "running"):
        raise FederationStateConflict(state=state)
    if not plan.privacy.allow_bearer_clients:
        raise Forbidden("this federation takes no clients with bearer credentials")
    if plan.adapter.blocks > profile.layers:
        raise Invalid(
            f"a model of {profile.layers} layers has no {plan.adapter.blocks} blocks", field="profile.layers"
        )
    roles = [role for role in plan.adapter.roles if role in profile.roles]
    if not roles:
        raise Invalid("the model has none of the plan's roles", field="profile.roles")
    if plan.adapter.kind == "lora":
        missing = [role for role in roles if role not in (profile.shapes or {})]
        if missing:
            raise Invalid(f"LoRA tensors need the shapes of {', '.join(missing)}", field="profile.shapes")
