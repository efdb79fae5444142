"""The privacy budget of a silo: its errors, and the limit that the silo sets itself."""

from __future__ import annotations

from client_agent.errors import AgentError
from schemas.messages.federations import FederationPlan, SignaturePlan
from schemas.peers import serves_fewer_than


class TooFewRecords(AgentError):
    """A silo has fewer records than the plan's differential privacy can hide one among."""


class LedgerDamaged(AgentError):
    """What this silo's signatures have cost can no longer be told."""

    def __init__(self, found: str) -> None:
        super().__init__(
            f"{found}: restore the newest copy of it; without it nobody knows how much of the privacy budget "
            "is spent, and no signature is released"
        )


class BudgetSpent(AgentError):
    """One more release would take a silo over the plan's privacy budget; `again`: the last one is here."""

    def __init__(self, spent: float, after: float, budget: float, *, again: bool) -> None:
        lost = (
            "There is none to send again: a crash after it was paid for lost it, its files are gone, or "
            "another federation spent the budget. It stays spent: ask the operator for a federation plan "
            "with a larger signature.dp.epsilon, and with releases of 2 or more: a crash then costs only one"
        )
        super().__init__(
            f"the privacy budget is spent: epsilon {spent:.3g} of {budget:.3g}, and one more signature would "
            f"make it {after:.3g}. {'The last one is sent again' if again else lost}"
        )


class NotPrivateEnough(AgentError):
    """The plan's signatures would tell more than the silo allows."""

    def __init__(self, plan: str, most: float) -> None:
        super().__init__(
            f"the plan {plan}, and this silo's max_epsilon is {most:g}: no signature is made. Ask the "
            f"operator for a plan with a signature.dp.epsilon of {most:g} or less, or raise max_epsilon here"
        )


class TooFewVoices(AgentError):
    """The plan would serve others what this silo trained in mixtures of fewer members than it allows."""

    def __init__(self, plan: int, least: int) -> None:
        super().__init__(
            f"the plan's privacy.min_voices is {plan}, and this silo's min_voices is {least}: it takes no "
            "part, and nothing that it trained is sent. Ask the operator for a federation with a "
            f"privacy.min_voices of {least} or more, or lower min_voices here"
        )


class AccountantsDisagree(AgentError):
    """The two privacy accountants contradict each other: one of them is wrong."""

    def __init__(self, tight: float, loose: float) -> None:
        super().__init__(
            f"privacy loss distributions say epsilon {tight:.4g} and Renyi divergences {loose:.4g}, which "
            "cannot be; report this with the versions of dp-accounting and scipy"
        )


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
    if serves_fewer_than(min_voices, plan):
        raise TooFewVoices(plan.privacy.min_voices, min_voices)
