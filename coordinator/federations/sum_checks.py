"""Check that a plan with `privacy.secure_sum` fits together. Pure."""

from __future__ import annotations

from coordinator.errors import Invalid
from coordinator.strategies.opening import NotSummed, OpenedPlan, require_summed
from schemas.messages.federations import FederationPlan
from schemas.messages.secure_sum import MOST_MEMBERS
from schemas.messages.sum_plan import SecureSumPlan


def check_sum(opened: OpenedPlan) -> None:
    """Raise unless updates can be summed under a plan; no effect without `privacy.secure_sum`.

    The size of an encoded vector needs no check: its words have at most 32 bits, and a dense float32 update
    must fit `limits.max_update_bytes` under every plan.

    Raises:
        Invalid: they cannot; the message names the field.
    """
    plan = opened.plan
    summed = plan.privacy.secure_sum
    if summed is None:
        return
    try:
        require_summed(opened)
    except NotSummed as error:
        raise Invalid(f"strategy.name: {error}", field="strategy.name") from error
    # All faults at once: a person corrects a plan in one step.
    refusals = (_clients(plan, summed), _encoding(plan), _alignment(plan), _privacy(plan, summed))
    faults = [refusal for refusal in refusals if refusal is not None]
    if faults:
        raise Invalid.of(faults)


Fault = tuple[str, str]
"""A field of the plan, and what is wrong with it."""


def _clients(plan: FederationPlan, summed: SecureSumPlan) -> Fault | None:
    rounds, least = plan.rounds, summed.minimum
    too_few = f"a sum needs privacy.secure_sum.minimum = {least} members; use {least} or more"
    if plan.privacy.allow_bearer_clients:
        return (
            "privacy.allow_bearer_clients",
            "members of a secure sum sign with keys, which bearer clients do not have; set it to false",
        )
    if rounds.min_clients < least:
        return "rounds.min_clients", too_few
    # A round that closes with fewer could never be summed.
    if rounds.needed_updates < least:
        return "rounds.quorum", too_few
    if rounds.min_clients > MOST_MEMBERS:
        return "rounds.min_clients", f"a sum has at most {MOST_MEMBERS} members; use fewer"
    return None


def _encoding(plan: FederationPlan) -> Fault | None:
    if not plan.wire.recipe.is_dense:
        return (
            "wire.recipe",
            "members of a secure sum encode all values alike; leave it out, or use dense",
        )
    if plan.wire.own_last_recipe is not None:
        return (
            "wire.weights_recipe",
            "there is no update that weights could be relative to; leave it out, or use int8, int4 or dense",
        )
    if plan.wire.max_bytes is not None:
        return (
            "wire.max_bytes",
            "the input of a secure sum has a fixed size, which privacy.secure_sum.bits decides; leave it out",
        )
    return None


def _alignment(plan: FederationPlan) -> Fault | None:
    if plan.alignment is None or plan.adapter.target_modules is not None:
        return None
    return (
        "adapter.target_modules",
        "with alignment and a secure sum, name the modules that all base models share",
    )


def _privacy(plan: FederationPlan, summed: SecureSumPlan) -> Fault | None:
    if plan.signature.dp is not None:
        return "signature.dp", "no signatures are sent in a federation with a secure sum; leave it out"
    peers = summed.minimum - 1
    if plan.privacy.min_voices > peers:
        return (
            "privacy.min_voices",
            f"a sum of privacy.secure_sum.minimum = {summed.minimum} members has {peers} others; "
            "raise that minimum",
        )
    return None
