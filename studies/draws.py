"""The silos that take part in each round of a run, if its plan draws them (`rounds.sample`). Pure.

All silos of a run are available in every round, so the coordinator's draw is known beforehand: the lowest
tickets among all names.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from math import ceil

from pydantic import JsonValue

from client_agent.errors import StudyUnusable
from schemas.maths.sampling import in_order
from schemas.messages.federations import FederationPlan
from studies.study import Study


def clients_per_round(sample: JsonValue, founders: int) -> int:
    """Return `rounds.min_clients`: the clients that a round draws; all founders without a valid sample."""
    if isinstance(sample, bool) or not isinstance(sample, int | float):
        return founders
    return min(founders, max(1, ceil(sample * founders) if isinstance(sample, float) else sample))


def drawn_in(plan: FederationPlan, round_number: int, names: Sequence[str]) -> list[str]:
    """Return the members that a round draws, in the order of `names`; all of them without a sample."""
    if plan.rounds.sample is None:
        return list(names)
    drawn = in_order(plan.training.seed, round_number, names)[: plan.rounds.min_clients]
    return [name for name in names if name in drawn]


def rounds_by_silo(study: Study, plan: FederationPlan) -> dict[str, int]:
    """Return in how many rounds of a run each silo takes part."""
    if plan.rounds.sample is None:
        return {silo.name: plan.rounds.total - silo.joins_after for silo in study.silo}
    names = [silo.name for silo in study.silo]
    rounds = Counter(name for n in range(1, plan.rounds.total + 1) for name in drawn_in(plan, n, names))
    return {name: rounds[name] for name in names}


def require_all_drawn(study: Study, method: str, plan: FederationPlan) -> None:
    """Check that a plan with a sample draws every silo.

    Raises:
        StudyUnusable: it never draws one, takes more silos than there are, or has latecomers or fair rules.
    """
    sample, silos = plan.rounds.sample, len(study.silo)
    if study.latecomers:
        raise StudyUnusable(
            f"the plan of method {method} draws clients, and silo {study.latecomers[0].name} joins late: "
            "leave rounds.sample or joins_after out"
        )
    if study.fair is not None:
        # What a client is served is measured where it takes part, so that there is no score of all clients
        # after each round, nor at a budget; and the control would train in more rounds than a client.
        raise StudyUnusable(
            f"the plan of method {method} draws clients, and a fair comparison needs the scores of every "
            "client after each round, which are measured only where it takes part: leave rounds.sample out, "
            "or compare without [fair], with one adapter and one learning rate for all methods"
        )
    if isinstance(sample, int) and sample > silos:
        raise StudyUnusable(
            f"the plan of method {method} draws {sample} of {silos} silos: lower rounds.sample"
        )
    never = [name for name, rounds in rounds_by_silo(study, plan).items() if not rounds]
    if never:
        raise StudyUnusable(
            f"{plan.rounds.total} rounds of method {method} with seed {plan.training.seed} never draw silo "
            f"{never[0]}: raise rounds.total or rounds.sample, or choose other seeds"
        )
