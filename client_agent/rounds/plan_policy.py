"""Check a plan, and the data sent beside its updates, against a silo's `[policy]`. Needs no torch."""

from __future__ import annotations

from client_agent.policy import Policy, SentKind
from client_agent.rounds.strategy import load_strategy
from schemas.messages.federations import FederationPlan


def require_policy(policy: Policy, plan: FederationPlan, document: bytes | None) -> None:
    """Check a plan by every rule of a policy that needs no layout.

    Args:
        document: the plan as served, whose digest is checked; None = not served yet.

    Raises:
        PolicyRefused: a rule does not allow the plan.
        UnknownStrategy, StrategyOptionsInvalid: this agent is older than the plan.
    """
    policy.require_plan(plan, document)
    if policy.sends is not None:
        policy.require_kinds(sent_kinds(plan))


def sent_kinds(plan: FederationPlan) -> tuple[SentKind, ...]:
    """Return the kinds of data that agents of a plan send beside updates; progress is each silo's choice.

    A sum has no sketches. Its losses count as sent if no mask hides a member's from the coordinator.
    """
    summed = plan.privacy.secure_sum
    is_hidden = summed is not None and summed.scores == "summed" and summed.masking == "pairwise"
    parts = load_strategy(plan.strategy.name, plan.strategy.options).parts
    is_sent_by_kind: dict[SentKind, bool] = {
        "sketches": summed is None,
        "scores": not is_hidden,
        "alignment": plan.alignment is not None,
    }
    sent_by_parts = [part.sends for part in parts if part.sends is not None]
    return (*(kind for kind, is_sent in is_sent_by_kind.items() if is_sent), *sent_by_parts)
