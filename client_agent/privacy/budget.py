"""The privacy budget of a silo: its errors and the silo's limits."""

from __future__ import annotations

from client_agent.errors import AgentError
from schemas.messages.federations import FederationPlan, SignaturePlan
from schemas.peers import serves_fewer_than


class TooFewRecords(AgentError):
    """A silo has fewer records than the plan's differential privacy requires."""


class LedgerDamaged(AgentError):
    """The ledger of the silo's sketches and training is unreadable or incomplete."""

    def __init__(self, damage: str) -> None:
        super().__init__(
            f"{damage}; restore the newest copy of it. Without it the spent privacy budget is not known, and "
            "no sketch or update is released"
        )


class BudgetSpent(AgentError):
    """One more release would exceed a privacy budget; with `sends_again` the last release is sent again."""

    def __init__(
        self, spent: float, next_epsilon: float, budget: float, delta: float, *, sends_again: bool
    ) -> None:
        advice = (
            "There is no sketch to send again: a crash lost it after it was paid for, its files are gone, or "
            "another federation spent the budget. The budget stays spent: ask the operator for a federation "
            f"plan with a larger signature.dp.epsilon, a signature.dp.delta of {delta:g} or less, and "
            "releases of 2 or more, so that a crash costs only one release"
        )
        super().__init__(
            f"the privacy budget is spent: epsilon {spent:.3g} of {budget:.3g} at delta {delta:g}, and one "
            f"more sketch would make it {next_epsilon:.3g}. "
            f"{'The last sketch is sent again' if sends_again else advice}"
        )


class TrainingBudgetSpent(AgentError):
    """Steps of a round would exceed a privacy budget of training at its delta."""

    def __init__(self, spent: float, next_epsilon: float, budget: float, delta: float, steps: int) -> None:
        super().__init__(
            f"the privacy budget of training is spent: epsilon {spent:.3g} of {budget:.3g} at delta "
            f"{delta:g}, and {steps} more steps would make it {next_epsilon:.3g}; nothing is trained or "
            "sent. Other federations, abandoned rounds and steps that crashes lost count too. Ask the "
            "operator for a federation plan with a larger privacy.training.epsilon and a "
            f"privacy.training.delta of {delta:g} or less, or with more privacy.training.steps: each then "
            "costs less"
        )


class NotPrivateEnough(AgentError):
    """The plan's sketches would cost more privacy than the silo allows."""

    def __init__(self, plan: str, limit: float, setting: str = "epsilon") -> None:
        super().__init__(
            f"the plan {plan}, and this silo's max_{setting} is {limit:g}; no sketch is computed. Ask the "
            f"operator for a plan with a signature.dp.{setting} of {limit:g} or less, or raise max_{setting} "
            "here"
        )


class TooFewVoices(AgentError):
    """The plan would serve mixtures of fewer members than the silo allows."""

    def __init__(self, plan: FederationPlan, least: int) -> None:
        summed = plan.privacy.secure_sum
        field, planned, needed = "privacy.min_voices", plan.privacy.min_voices, least
        if summed is not None:  # a member of a sum learns at best what all others together have sent
            field, planned, needed = "privacy.secure_sum.minimum", summed.minimum, least + 1
        super().__init__(
            f"the plan's {field} is {planned}, and this silo's min_voices is {least}; it does not take part, "
            f"and sends no update. Ask the operator for a federation with a {field} of {needed} or more, or "
            "lower min_voices here"
        )


class AccountantsDisagree(AgentError):
    """The two privacy accountants contradict each other."""

    def __init__(self, pld_epsilon: float, renyi_epsilon: float) -> None:
        super().__init__(
            f"epsilon is {pld_epsilon:.4g} by privacy loss distributions and {renyi_epsilon:.4g} by Renyi "
            "divergences, which is impossible; report this with the versions of dp-accounting and scipy"
        )


def require_private(plan: SignaturePlan, max_epsilon: float | None, max_delta: float = 1e-5) -> None:
    """Check that all sketches together cost at most `max_epsilon` at `max_delta`; None means no limit.

    Raises:
        NotPrivateEnough: the plan has no differential privacy, or a larger epsilon or delta.
    """
    if max_epsilon is None:
        return
    if plan.dp is None:
        raise NotPrivateEnough("asks for sketches without differential privacy", max_epsilon)
    if plan.dp.epsilon > max_epsilon:
        raise NotPrivateEnough(f"allows sketches to cost epsilon {plan.dp.epsilon:g}", max_epsilon)
    # An epsilon says nothing without its delta: a larger delta allows a smaller epsilon.
    if plan.dp.delta > max_delta:
        raise NotPrivateEnough(f"promises epsilon at delta {plan.dp.delta:g} only", max_delta, "delta")


def require_voices(plan: FederationPlan, min_voices: int) -> None:
    """Check that mixtures consist of `min_voices` other members at least.

    Raises:
        TooFewVoices: the plan serves mixtures of fewer members.
    """
    if serves_fewer_than(min_voices, plan):
        raise TooFewVoices(plan, min_voices)
