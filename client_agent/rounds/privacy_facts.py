"""The privacy section of `tessera agent check`: guarantees, noise and spent budget under a plan."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from client_agent.model.examples import Example
from client_agent.privacy.budget import require_private
from client_agent.privacy.ledger import Ledger
from client_agent.privacy.training import training_mechanism
from client_agent.rounds.plan import SiloPlan
from client_agent.rounds.private_training import different, require_own_loop, require_private_method
from client_agent.rounds.sketch import mechanism_for
from client_agent.rounds.strategy import load_strategy
from client_agent.settings import AgentSettings
from client_agent.training.data import SiloData, without_held_out
from schemas.messages.federations import FederationPlan
from schemas.operator_claims import coordinator_sees
from schemas.privacy import budget_status, guarantee, training_guarantee, training_status


def privacy_facts(
    settings: AgentSettings,
    planned: SiloPlan,
    whole: FederationPlan | None,
    data: Callable[[], SiloData],
) -> str:
    """Return the guarantees of a plan, their noise in this silo, what is spent, and the silo's own limits.

    Args:
        whole: the federation's plan; None before enrolment.
        data: loads the silo's examples.

    Raises:
        NotPrivateEnough: the plan's sketches cost more than the silo allows.
        NotPrivatelyTrained: the method or the silo's trainer does not train in private steps.
        TooFewRecords: the silo has too few examples, or so many that delta protects none of them.
        LedgerDamaged: the spent budget is not known.
    """
    sketch, most = planned.sketch, settings.max_epsilon
    if planned.guessed:
        if most is None:
            return "no max_epsilon is set: the federation's plan decides whether gradient sketches get noise"
        return f"max_epsilon {most:g} limits the federation's plan, which is not known yet"

    def examples() -> Sequence[Example]:
        is_private = whole is not None and whole.privacy.training is not None
        return (without_held_out(data()) if is_private else data()).train

    trained = _private_training(settings, whole, examples)
    if whole is not None and whole.privacy.secure_sum is not None:
        view = coordinator_sees(whole, whole.privacy.secure_sum)
        return " ".join([view, "No gradient sketches are sent.", *trained])
    require_private(sketch, most, settings.max_delta)
    if sketch.dp is None:
        return f"gradient sketches without noise ({planned.source}): the coordinator is trusted with them"
    mechanism = mechanism_for(examples(), sketch, sketch.dp)
    spent = Ledger(settings.folder).read()
    so_far = budget_status(sketch, spent.sketch_epsilon, len(spent.releases), spent.sketch_delta)
    limit = (
        "no max_epsilon is set: the plan decides"
        if most is None
        else f"max_epsilon {most:g} is met at delta {sketch.dp.delta:g}"
    )
    private = whole.privacy.training if whole is not None else None
    sketches = f"{guarantee(sketch, private)}. Noise {mechanism.noise_multiplier:.2f}; {so_far}; {limit}"
    return ". ".join([sketches, *trained])


def _private_training(
    settings: AgentSettings, plan: FederationPlan | None, examples: Callable[[], Sequence[Example]]
) -> list[str]:
    """Return the guarantee of private training, its noise and what is spent; [] without it."""
    dp = plan.privacy.training if plan is not None else None
    if plan is None or dp is None:
        return []
    require_private_method(load_strategy(plan.strategy.name, plan.strategy.options).parts)
    require_own_loop(settings.trainer)
    mechanism = training_mechanism(len(different(examples())), 1, plan.training, dp)
    book = Ledger(settings.folder).read()
    spent = training_status(dp, book.training_epsilon, book.training_delta)
    # At the smallest delta all promises can be compared.
    delta = min(dp.delta, *(entry.delta for entry in (*book.releases, *book.training)), 1)
    together = f"; sketches and training together: epsilon {book.together(delta):.3g} at delta {delta:g}"
    return [
        f"Training: {training_guarantee(plan)}. Noise {mechanism.noise_multiplier:.2f} on "
        f"{mechanism.sampled} of {mechanism.records} examples a step; {spent}"
        f"{together if book.releases and book.training else ''}"
    ]
