"""Sessions whose sum is to be opened: claim one with a lease, extend the lease, forget all leases.

The transaction that commits a total checks the token of the lease, so that only its holder commits.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import CursorResult, bindparam, or_, select, update
from sqlalchemy.orm import Session

from coordinator.db.engine import Database, database_time, run
from coordinator.db.federation_lock import hold_federation
from coordinator.db.tables.federations import RoundRow
from coordinator.db.tables.secure_sum import SumSessionRow
from coordinator.observability.fault_points import may_crash
from coordinator.rounds.lease import Lease
from coordinator.rounds.store import LeaseToken, LostRace
from coordinator.secure_sum.store import OPENING

_IS_OPENING = SumSessionRow.state == OPENING
_IS_FREE = or_(SumSessionRow.lease_token.is_(None), SumSessionRow.lease_expires_at <= bindparam("now"))
_FREE = (
    select(SumSessionRow.id, RoundRow.federation_id, RoundRow.number)
    .join(RoundRow, RoundRow.id == SumSessionRow.round_id)
    .where(_IS_OPENING, _IS_FREE)
    .order_by(SumSessionRow.phase_opened_at)
)


@dataclass(frozen=True, slots=True)
class SumClaim:
    """A session whose sum this worker opens until its lease runs out."""

    federation_id: str
    round_number: int
    session_id: int
    token: LeaseToken


def claim_due(database: Database, lease_seconds: float) -> SumClaim | None:
    """Claim a session whose phases have closed, or whose lease has expired; None if there is none."""
    # Read without a lock; the update below decides between workers.
    with database.autocommit() as connection:
        due = run(connection, _FREE, {"now": database_time(connection)}).all()
    for session_id, federation_id, round_number in due:
        token = LeaseToken(secrets.token_hex(16))
        with database.write() as session:
            hold_federation(session, federation_id)
            now = database_time(session)
            changed = _update(
                session,
                session_id,
                _IS_FREE,
                {"lease_token": token, "lease_expires_at": now + timedelta(seconds=lease_seconds)},
                now,
            )
            may_crash("sum-claim-written")
        if changed:
            may_crash("sum-claim-committed")
            return SumClaim(federation_id, round_number, session_id, token)
    return None


def expire_leases(session: Session) -> None:
    """Expire the leases of all sessions; for the start of a coordinator that is the only replica."""
    session.execute(
        update(SumSessionRow)
        .where(_IS_OPENING)
        .values(lease_expires_at=database_time(session))
        .execution_options(synchronize_session=False)
    )


def lease_of(database: Database, claim: SumClaim, seconds: float) -> Lease:
    """Return the lease of a claimed session."""

    def extend_by(seconds: float) -> None:
        with database.write() as session:
            now = database_time(session)
            # Not the expiry: a lease that has run out is still ours until another worker takes it.
            is_ours = SumSessionRow.lease_token == claim.token
            values = {"lease_expires_at": now + timedelta(seconds=seconds)}
            if not _update(session, claim.session_id, is_ours, values, now):
                raise LostRace

    return Lease(extend_by, seconds)


def _update(session: Session, session_id: int, condition: Any, values: dict[str, Any], now: datetime) -> bool:
    """Change the lease of a session that is being opened, if `condition` holds; return whether it did."""
    statement = update(SumSessionRow).where(SumSessionRow.id == session_id, _IS_OPENING, condition)
    result = session.execute(
        statement.values(**values).execution_options(synchronize_session=False), {"now": now}
    )
    return isinstance(result, CursorResult) and result.rowcount == 1
