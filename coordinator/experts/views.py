"""Build the view of a bank of experts, the same for people and for clients: sums only."""

from __future__ import annotations

from dataclasses import asdict

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from coordinator.db.tables.experts import BankRoundRow, ExpertRow
from coordinator.experts.bank import Expert
from coordinator.experts.current_bank import current_bank
from coordinator.experts.store import Revision
from coordinator.federations.store import plan
from coordinator.strategies.opening import open_plan
from schemas.messages.experts import BankRoundView, BankView, ExpertEvent, ExpertView


def bank_view(session: Session, federation_id: str, *, before: int | None, limit: int) -> BankView:
    """Return a federation's bank, with its `limit` newest rounds before round `before` (None = of all).

    Before the first sum it is the bank that the first round begins with. All lists are empty if the strategy
    has none.

    Raises:
        NotFound: there is no such federation.
    """
    current = current_bank(session, federation_id, open_plan(plan(session, federation_id)))
    if current is None:
        return BankView(experts=[], rounds=[], events=[], next=None)
    # One more than is shown tells whether another page follows.
    rows = _rounds(session, federation_id, before, limit + 1)
    shown = rows[:limit]
    return BankView(
        experts=[_expert(expert, current.revisions.get(expert.expert)) for expert in current.bank.experts],
        rounds=[_round(row) for row in shown],
        events=[ExpertEvent.model_validate(event) for row in shown for event in row.events],
        next=str(shown[-1].round_number) if len(rows) > limit else None,
    )


def experts_by_status(session: Session) -> dict[str, int]:
    """Return the number of experts of all federations by status; a bank is stored after its first sum."""
    rows = session.execute(select(ExpertRow.status, func.count()).group_by(ExpertRow.status))
    return {status: count for status, count in rows}


def _rounds(session: Session, federation_id: str, before: int | None, limit: int) -> list[BankRoundRow]:
    query = select(BankRoundRow).where(BankRoundRow.federation_id == federation_id)
    if before is not None:
        query = query.where(BankRoundRow.round_number < before)
    return list(session.scalars(query.order_by(BankRoundRow.round_number.desc()).limit(limit)))


def _expert(expert: Expert, revision: Revision | None) -> ExpertView:
    facts = asdict(expert)
    return ExpertView(
        **{name: facts[name] for name in ExpertView.model_fields if name in facts},
        revision=revision.round_number if revision is not None else 0,
        digest=revision.digest if revision is not None else None,
        bytes=revision.bytes if revision is not None else 0,
    )


def _round(row: BankRoundRow) -> BankRoundView:
    return BankRoundView(
        round=row.round_number,
        members=row.sums["members"],
        users=row.sums["users"],
        rejects=row.sums["rejects"],
    )
