"""The bank of experts of a method, and its worst clients by round. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from schemas.messages.base import Strict
from studies.bank_record import BankRecord
from studies.report.curves import LossCurve, trained_losses
from studies.report.estimates import estimate
from studies.results import CellResult


class BankSummary(Strict):
    """The bank of a method's first seed that has one."""

    seed: int
    record: BankRecord


def bank_of(results: Sequence[CellResult]) -> BankSummary | None:
    """Return the bank of the first run that has one; None = the method has no experts."""
    for result in results:
        if result.bank is not None:
            return BankSummary(seed=result.seed, record=result.bank)
    return None


def worst_curve(results: Sequence[CellResult], names: Sequence[str], steps: int) -> LossCurve:
    """Return the loss of the worst of some clients after each round's local steps, estimated over seeds."""
    by_seed = [[trained_losses(c) for c in result.clients if c.name in names] for result in results]
    length = min(len(curve) for curves in by_seed for curve in curves)
    return LossCurve(
        steps=[steps * i for i in range(length)],
        loss=[estimate([max(curve[i] for curve in curves) for curves in by_seed]) for i in range(length)],
    )
