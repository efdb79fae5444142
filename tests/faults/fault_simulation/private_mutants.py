"""Faults planted in the ledger of private training."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from client_agent.privacy import ledger
from client_agent.privacy.ledger import Ledger
from client_agent.rounds.private_training import RoundPayments
from tests.faults.fault_simulation.fault_rates import FaultRates, Plan
from tests.faults.fault_simulation.planting import omits, replaces


def _trains_privately(plan: Plan, rates: FaultRates) -> bool:
    return plan.private


def _is_killed(plan: Plan, rates: FaultRates) -> bool:
    return plan.private and rates.agent_crash > 0.01


def _power_goes(plan: Plan, rates: FaultRates) -> bool:
    return _is_killed(plan, rates) and rates.power > 0


omits("pays for no step", RoundPayments, "pay", _trains_privately)
omits("begins steps without its ledger", Ledger, "begin_step", _trains_privately)


@replaces(ledger, "write_durably", _power_goes)
def does_not_sync_its_ledger(_: Any, path: Path, content: bytes) -> None:
    """The ledger entry is lost if the power fails."""
    path.write_bytes(content)


@replaces(Ledger, "begin_step", _is_killed)
def begins_steps_once_a_round(begin: Any, book: Ledger, federation: str, number: int, mechanism: Any) -> None:
    """A step that is repeated after a kill is not counted again."""
    of_round = [entry for entry in book.read().training if entry.pays_for(federation, number, mechanism)]
    if of_round and of_round[0].left:
        begin(book, federation, number, mechanism)


@replaces(RoundPayments, "pay", _is_killed)
def pays_once_a_round(pay: Any, payments: RoundPayments, steps: int) -> None:
    """The steps of a round are paid for once, however often they are begun."""
    book = payments.ledger.read()
    if not any(entry.round == payments.round_number for entry in book.training):
        pay(payments, steps)
