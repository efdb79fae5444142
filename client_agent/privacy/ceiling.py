"""Hold a plan to what the silo itself allows. Knows no model and no coordinator."""

from __future__ import annotations

from client_agent.privacy.errors import NotPrivateEnough, TooFewVoices
from schemas.messages.federations import FederationPlan, SignaturePlan
from schemas.peers import fewer_than_asked


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


def require_voices(plan: FederationPlan, min_voices: int) -> None:
    """Check that mixtures are made of `min_voices` other members at least.

    Raises:
        TooFewVoices: the plan serves mixtures of fewer.
    """
    if fewer_than_asked(min_voices, plan):
        raise TooFewVoices(plan.privacy.min_voices, min_voices)
