"""Check a plan against a silo's data and settings, before the silo joins a round of it.

A refusal after the join would waste training and privacy budget, and would keep the round waiting for this
silo.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from client_agent.privacy.budget import BudgetSpent, require_private, require_voices
from client_agent.privacy.ledger import Ledger
from client_agent.privacy.training import training_mechanism
from client_agent.rounds.part import Part, obstacle
from client_agent.rounds.plain_steps import earlier_sketch
from client_agent.rounds.plan import require_trainer_suits
from client_agent.rounds.planned_parts import with_planned
from client_agent.rounds.private_training import different, require_private_steps
from client_agent.rounds.sketch import mechanism_for
from client_agent.rounds.strategy import load_strategy
from client_agent.rounds.work import Work
from client_agent.storage.round_folder import SKETCH
from client_agent.training.data import without_held_out
from client_agent.training.ranks import require_divisible
from client_agent.training.silo import Silo
from schemas.messages.adapter_plan import AdapterPlan
from schemas.messages.federations import FederationPlan, SignaturePlan


def require_possible(
    silo: Silo, plan: FederationPlan, *, max_epsilon: float | None, max_delta: float, min_voices: int
) -> None:
    """Check all that a plan, the silo's data and its settings decide, except for its policy.

    Raises:
        AgentError: the silo cannot take part under this plan.
    """
    strategy = load_strategy(plan.strategy.name, plan.strategy.options)
    parts = with_planned(strategy.parts, plan.training)
    training = silo.data.train
    if plan.privacy.training is not None:
        training = without_held_out(silo.data).train
    require_voices(plan, min_voices)
    if plan.privacy.secure_sum is None:  # else no sketch is sent
        require_private(plan.signature, max_epsilon, max_delta)
        if plan.signature.dp is not None:
            mechanism_for(training, plan.signature, plan.signature.dp)
        pivot = plan.alignment.pivot if plan.alignment is not None else None
        require_shared_model(silo, plan.signature, pivot)
    require_suitable(silo, plan.adapter, parts)
    if (dp := plan.privacy.training) is not None:
        require_private_steps(silo, parts)
        # The number of trained values is known only with the adapter: 1 is the least strict.
        training_mechanism(len(different(training)), 1, plan.training, dp)
    silo.require_fit(plan.training.max_length)


def require_suitable(silo: Silo, adapter: AdapterPlan, parts: Sequence[Part]) -> None:
    """Check that the silo's trainer and the processes of torchrun suit a plan.

    Raises:
        AgentError: they do not.
    """
    if silo.ranks is not None:
        require_divisible(obstacle(parts, "torchrun"))
    if silo.trainer is not None:
        require_trainer_suits(silo.trainer, adapter, parts)


def require_shared_model(silo: Silo, plan: SignaturePlan, pivot: str | None) -> None:
    """Check that the silo has the model in which sketches are computed.

    Raises:
        PivotMissing: neither its own model nor `pivot_model` is that model.
    """
    slug = plan.model or pivot
    if slug is not None:
        silo.shared_source(slug)


def require_round(work: Work) -> None:
    """Check before this client joins a round that it can compute a sketch, and pay for it and for its steps.

    Raises:
        NotPrivatelyTrained: the method or the silo does not train in private steps.
        BudgetSpent: the budget is too small for a sketch, and there is none to send again.
        TrainingBudgetSpent: the budget is too small for the steps of a round.
        TooFewRecords, LedgerDamaged, PivotMissing: see `mechanism_for`, `Ledger` and `require_shared_model`.
    """
    brief, silo = work.brief, work.trainer.silo
    require_suitable(silo, brief.adapter, work.opened.parts)
    ledger = Ledger(work.participant.workspace.folder)
    if work.sum_plan is None:
        require_shared_model(silo, brief.signature, brief.alignment.pivot if brief.alignment else None)
        _require_sketch(work, ledger)
    if (dp := work.private_training) is not None:
        require_private_steps(silo, work.opened.parts)
        values = sum(prod(shape) for shape in work.trainer.layout(work.opened, work.earlier).values())
        mechanism = training_mechanism(len(different(silo.data.train)), values, brief.training, dp)
        # Priced and not written: the steps are paid for when they begin.
        ledger.with_steps(work.session.federation_id, brief.round, mechanism, brief.training.steps, dp)


def _require_sketch(work: Work, ledger: Ledger) -> None:
    """Check that a private sketch of the round can be drawn and paid for, or sent again."""
    plan = work.brief.signature
    if plan.dp is None:
        return
    mechanism, last = mechanism_for(work.trainer.silo.data.train, plan, plan.dp), earlier_sketch(work)
    try:
        released = last.released if last is not None else None
        ledger.priced(work.session.federation_id, work.brief.round, mechanism, plan.dp, released)
    except BudgetSpent:
        # With a spent budget the last sketch is sent again, which costs nothing.
        if last is None and not work.folder.has(SKETCH):
            raise
