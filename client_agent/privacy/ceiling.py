"""Hold a plan's signatures to what the silo itself allows. Knows no model and no coordinator."""

from __future__ import annotations

from client_agent.privacy.errors import NotPrivateEnough
from schemas.messages.federations import SignaturePlan


def require_private(plan: SignaturePlan, max_epsilon: float | None) -> None:
    """Check that signatures cost `max_epsilon` together at most; None leaves it to the plan.

    Raises:
        NotPrivateEnough: the plan asks for none of it, or allows more.
    """
    if max_epsilon is None:
        return
    if plan.dp is None:
        raise NotPrivateEnough("asks for signatures without differential privacy", max_epsilon)
    if plan.dp.epsilon > max_epsilon:
        raise NotPrivateEnough(f"lets signatures cost epsilon {plan.dp.epsilon:g}", max_epsilon)
