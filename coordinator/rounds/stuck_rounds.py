"""Rounds that wait longer than they should, for metrics and webhooks."""

from __future__ import annotations

from datetime import datetime, timedelta

from sqlalchemy import select
from sqlalchemy.orm import Session

from coordinator.db.tables.federations import FederationRow, RoundRow
from coordinator.rounds.lifecycle import ENDED

_IN_PROGRESS = (
    select(RoundRow, FederationRow.state)
    .join(FederationRow, FederationRow.id == RoundRow.federation_id)
    .where(RoundRow.state.not_in(sorted(ENDED)))
    .order_by(RoundRow.id)
)


def stuck_rounds(session: Session, now: datetime, seconds: float) -> list[RoundRow]:
    """Return the rounds that have waited for longer than `seconds`.

    They waited after their deadline, or in a state without one. A round that waits for clients
    while its federation is paused is not stuck.
    """
    return [
        row
        for row, federation_state in session.execute(_IN_PROGRESS)
        if not (row.state == "open" and federation_state == "paused")
        and now - waiting_since(row) > timedelta(seconds=seconds)
    ]


def waiting_since(row: RoundRow) -> datetime:
    """Return the time from which a round in progress waits: its deadline while it collects."""
    entered = {
        "collecting": row.deadline,
        "summing": row.summing_at,
        "closing": row.closing_at,
        "aggregating": row.aggregating_at,
    }
    return entered.get(row.state) or row.opened_at
