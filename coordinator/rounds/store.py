"""Query rounds, and change their state by compare-and-set."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, NewType

from sqlalchemy import (
    ColumnElement,
    Connection,
    CursorResult,
    bindparam,
    case,
    delete,
    exists,
    func,
    or_,
    select,
    update,
)
from sqlalchemy.orm import Session
from sqlalchemy.orm.attributes import set_committed_value

from coordinator.db.engine import database_time, run
from coordinator.db.tables.federations import (
    ClientRow,
    FederationRow,
    ParticipationRow,
    ProgressRow,
    RoundRow,
    UpdateRow,
)
from coordinator.errors import NotFound
from coordinator.rounds.lifecycle import ACCEPTING, DELIVERED, TRANSITIONS, IllegalTransition, RoundFacts
from schemas.messages.federations import FederationPlan, RoundsPlan
from schemas.messages.rounds import RoundState

LeaseToken = NewType("LeaseToken", str)

_PROGRESS_OF_EARLIER_ROUNDS = delete(ProgressRow).where(
    ProgressRow.round_id.in_(
        select(RoundRow.id).where(
            RoundRow.federation_id == bindparam("federation_id"), RoundRow.number < bindparam("number")
        )
    )
)
_STATES: dict[str, RoundState] = {state: state for pair in TRANSITIONS for state in pair}
_IS_ENROLLED = ClientRow.state == "enrolled"
_HAS_DELIVERED = ParticipationRow.state.in_(sorted(DELIVERED))


def _count(condition: ColumnElement[bool]) -> ColumnElement[int]:
    return func.coalesce(func.sum(case((condition, 1), else_=0)), 0)


# joined, expected, waiting, delivered, as RoundFacts defines them.
_COUNTS = (
    _count(_IS_ENROLLED),
    _count(_IS_ENROLLED & (ParticipationRow.is_waited_for | _HAS_DELIVERED)),
    _count(_IS_ENROLLED & ParticipationRow.is_waited_for & ~_HAS_DELIVERED),
    _count(_HAS_DELIVERED),
)

_FEDERATION_ROUNDS = select(RoundRow).where(RoundRow.federation_id == bindparam("federation_id"))
_NUMBERED = _FEDERATION_ROUNDS.where(RoundRow.number == bindparam("number"))
_LATEST = _FEDERATION_ROUNDS.order_by(RoundRow.number.desc()).limit(1)
_LOCKED = _NUMBERED.with_for_update().execution_options(populate_existing=True)
# A round that another worker is claiming is skipped, not waited for.
_CLAIMABLE = _NUMBERED.with_for_update(skip_locked=True).execution_options(populate_existing=True)
_PUBLISHED = select(func.count(), func.max(RoundRow.number)).where(
    RoundRow.federation_id == bindparam("federation_id"), RoundRow.state == "published"
)
_FACTS = (
    select(*_COUNTS)
    .join_from(ParticipationRow, ClientRow, ParticipationRow.client_id == ClientRow.id)
    .where(ParticipationRow.round_id == bindparam("round"))
)
_WAITS = select(
    exists().where(
        ParticipationRow.round_id == bindparam("round"),
        ~_HAS_DELIVERED,
        ParticipationRow.is_waited_for,
        ParticipationRow.client_id == ClientRow.id,
        _IS_ENROLLED,
    )
)
_COLLECTING = (
    select(RoundRow, FederationRow.plan, *_COUNTS)
    .join(FederationRow, FederationRow.id == RoundRow.federation_id)
    .join(ParticipationRow, ParticipationRow.round_id == RoundRow.id)
    .join(ClientRow, ClientRow.id == ParticipationRow.client_id)
    .where(RoundRow.state == "collecting")
    .group_by(RoundRow.id, FederationRow.id)
    .order_by(RoundRow.id)
)
_ORPHANED = (RoundRow.state == "aggregating") & (RoundRow.lease_expires_at <= bindparam("now"))
_AWAITING = (
    select(RoundRow.federation_id, RoundRow.number)
    .where(or_(RoundRow.state == "closing", _ORPHANED))
    .order_by(RoundRow.closing_at)
)


class LostRace(Exception):
    """Another transaction moved the round first; read it again."""


def latest(session: Session, federation_id: str) -> RoundRow | None:
    return session.scalar(_LATEST, {"federation_id": federation_id})


def get_round(session: Session, federation_id: str, round_number: int, *, lock: bool = False) -> RoundRow:
    """Return a round, with `lock` locked until the transaction ends.

    Raises:
        NotFound: the round does not exist.
    """
    row = session.scalar(
        _LOCKED if lock else _NUMBERED, {"federation_id": federation_id, "number": round_number}
    )
    if row is None:
        raise NotFound
    return row


def collecting(session: Session) -> list[tuple[RoundRow, RoundFacts]]:
    """Return the collecting rounds of all federations with their facts.

    Only these become due without a request: at their deadline, or after a client was revoked.
    """
    return [
        (row, _facts(row, RoundsPlan.model_validate(plan["rounds"]), _sums(plan), *counts))
        for row, plan, *counts in session.execute(_COLLECTING)
    ]


def awaiting_worker(connection: Session | Connection, now: datetime) -> list[tuple[str, int]]:
    """Return the (federation id, round number) of rounds to aggregate, the oldest first."""
    return [
        (federation_id, round_number)
        for federation_id, round_number in run(connection, _AWAITING, {"now": now})
    ]


def expire_leases(session: Session) -> None:
    """Expire the leases of all rounds; for the start of a coordinator that is the only replica."""
    session.execute(
        update(RoundRow)
        .where(RoundRow.state == "aggregating")
        .values(lease_expires_at=database_time(session))
        .execution_options(synchronize_session=False)
    )


def published(session: Session, federation_id: str) -> tuple[int, int]:
    """Return the number of published rounds, and the round number of the last (0 = none)."""
    count, last = run(session, _PUBLISHED, {"federation_id": federation_id}).one()
    return count, last or 0


def facts(session: Session, row: RoundRow, plan: FederationPlan) -> RoundFacts:
    """Return the facts of a round; counts of clients are those of rounds that accept updates."""
    sums = plan.privacy.secure_sum is not None
    if row.state not in ACCEPTING:
        return _facts(row, plan.rounds, sums, 0, 0, 0, 0)
    return _facts(row, plan.rounds, sums, *run(session, _FACTS, {"round": row.id}).one())


def is_waiting(session: Session, row: RoundRow, now: datetime) -> bool:
    """Whether a round collects before its deadline and a client is still waited for, so that no step is due.

    Each update calls it under the federation's lock; it reads one row, where `facts` counts all of them.
    """
    if row.state != "collecting" or row.deadline is None or now >= row.deadline:
        return False
    return bool(run(session, _WAITS, {"round": row.id}).scalar())


def state_of(row: RoundRow) -> RoundState:
    return parse_state(row.state)


def parse_state(stored: str) -> RoundState:
    """Return a stored state as its type.

    Raises:
        IllegalTransition: the state does not exist.
    """
    state = _STATES.get(stored)
    if state is None:
        raise IllegalTransition(f"a round is stored with the unknown state {stored}")
    return state


def open_round(session: Session, federation_id: str, round_number: int, now: datetime) -> RoundRow:
    row = RoundRow(federation_id=federation_id, number=round_number, state="open", version=0, opened_at=now)
    session.add(row)
    # Reports are shown while a client trains, and have no use afterwards.
    run(session, _PROGRESS_OF_EARLIER_ROUNDS, {"federation_id": federation_id, "number": round_number})
    session.flush()
    return row


def transition(session: Session, row: RoundRow, to: RoundState, **changes: Any) -> None:
    """Set a round's state, if state, version and lease are still those of `row`.

    Raises:
        LostRace: they are not.
        IllegalTransition: the transition is not in TRANSITIONS.
    """
    if (row.state, to) not in TRANSITIONS:
        raise IllegalTransition(f"a round cannot move from {row.state} to {to}")
    # Compare-and-set: of two transactions that read the same row, one moves the round.
    same_lease = (
        RoundRow.lease_token.is_(None) if row.lease_token is None else RoundRow.lease_token == row.lease_token
    )
    values = {"state": to, "version": row.version + 1, **changes}
    result = run(
        session,
        update(RoundRow)
        .where(
            RoundRow.id == row.id, RoundRow.state == row.state, RoundRow.version == row.version, same_lease
        )
        .values(**values),
    )
    _require_one_row(result)
    # The row in memory follows the statement without another query.
    for name, value in values.items():
        set_committed_value(row, name, value)


def extend_lease(session: Session, round_id: int, token: LeaseToken, until: datetime) -> None:
    """Extend the lease of the worker that aggregates a round.

    Raises:
        LostRace: another worker holds the lease, or the round has ended.
    """
    result = session.execute(
        update(RoundRow)
        .where(RoundRow.id == round_id, RoundRow.state == "aggregating", RoundRow.lease_token == token)
        .values(lease_expires_at=until)
        .execution_options(synchronize_session=False)
    )
    _require_one_row(result)


def claimable(session: Session, federation_id: str, round_number: int) -> RoundRow | None:
    return session.scalar(_CLAIMABLE, {"federation_id": federation_id, "number": round_number})


def reject_updates(session: Session, round_id: int, reason: str) -> None:
    session.execute(
        update(UpdateRow)
        .where(UpdateRow.round_id == round_id)
        .values(reject_reason=reason)
        .execution_options(synchronize_session=False)
    )
    session.execute(
        update(ParticipationRow)
        .where(ParticipationRow.round_id == round_id, _HAS_DELIVERED)
        .values(state="rejected", reject_reason=reason)
        .execution_options(synchronize_session=False)
    )


def _sums(plan: Mapping[str, Any]) -> bool:
    """Whether a stored plan has a secure sum."""
    return plan["privacy"]["secure_sum"] is not None


def _facts(
    row: RoundRow, plan: RoundsPlan, sums: bool, joined: int, expected: int, waiting: int, delivered: int
) -> RoundFacts:
    return RoundFacts(
        state=state_of(row),
        joined=joined,
        expected=expected,
        waiting=waiting,
        delivered=delivered,
        needed=plan.min_clients,
        quorum=plan.needed_updates,
        collect_seconds=plan.collect_seconds,
        deadline=row.deadline,
        lease_expires_at=row.lease_expires_at,
        sums=sums,
    )


def _require_one_row(result: Any) -> None:
    if not isinstance(result, CursorResult) or result.rowcount != 1:
        raise LostRace
