"""Check before a client joins a round that its privacy budget pays for the training. Needs no torch."""

from __future__ import annotations

from client_agent.privacy.ledger import Ledger
from client_agent.privacy.training import training_mechanism
from client_agent.rounds.opened_round import OpenedRound
from schemas.messages.private_training import PrivateTrainingPlan


def require_affordable_steps(work: OpenedRound, records: int, dp: PrivateTrainingPlan) -> None:
    """Check that the budget pays for the steps of a round, without paying.

    Args:
        records: the number of different training examples.

    Raises:
        TrainingBudgetSpent: the budget is too small for a round.
        TooFewRecords, LedgerDamaged: see `training_mechanism` and `Ledger`.
    """
    plan = work.brief.training
    mechanism = training_mechanism(records, 1, plan, dp)
    ledger = Ledger(work.participant.workspace.folder)
    ledger.with_steps(work.session.federation_id, work.brief.round, mechanism, plan.steps, dp)
