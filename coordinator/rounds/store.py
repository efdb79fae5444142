"""The rows of rounds and of who takes part. One function per question; transitions compare and set."""

from __future__ import annotations

from datetime import datetime
from typing import Any, NewType

from sqlalchemy import (
    ColumnElement,
    Connection,
    CursorResult,
    bindparam,
    case,
    exists,
    func,
    or_,
    select,
    update,
)
from sqlalchemy.orm import Session
from sqlalchemy.orm.attributes import set_committed_value

from coordinator.db.engine import now, run
from coordinator.db.tables.federations import ClientRow, FederationRow, ParticipationRow, RoundRow, UpdateRow
from coordinator.errors import NotFound
from coordinator.rounds.lifecycle import TAKING_PART, TRANSITIONS, IllegalTransition, RoundFacts
from schemas.messages.federations import FederationPlan, RoundsPlan
from schemas.messages.rounds import RoundState

LeaseToken = NewType("LeaseToken", str)

_STATES: dict[str, RoundState] = {state: state for pair in TRANSITIONS for state in pair}
_IS_HERE = ClientRow.state == "enrolled"
_HAS_ARRIVED = ParticipationRow.state == "arrived"


def _how_many(condition: ColumnElement[bool]) -> ColumnElement[int]:
    return func.coalesce(func.sum(case((condition, 1), else_=0)), 0)


# Of the participations of a round: joined, expected, waiting, delivered, as RoundFacts names them.
_HEADS = (
    _how_many(_IS_HERE),
    _how_many(_IS_HERE & (ParticipationRow.is_waited_for | _HAS_ARRIVED)),
    _how_many(_IS_HERE & ParticipationRow.is_waited_for & ~_HAS_ARRIVED),
    _how_many(_HAS_ARRIVED),
)

_OF_FEDERATION = select(RoundRow).where(RoundRow.federation_id == bindparam("fid"))
_NUMBERED = _OF_FEDERATION.where(RoundRow.number == bindparam("number"))
_LATEST = _OF_FEDERATION.order_by(RoundRow.number.desc()).limit(1)
_LOCKED = _NUMBERED.with_for_update().execution_options(populate_existing=True)
_CLAIMABLE = _NUMBERED.with_for_update(skip_locked=True).execution_options(populate_existing=True)
_PUBLISHED = select(func.count(), func.max(RoundRow.number)).where(
    RoundRow.federation_id == bindparam("fid"), RoundRow.state == "published"
)
_FACTS = (
    select(*_HEADS)
    .join_from(ParticipationRow, ClientRow, ParticipationRow.client_id == ClientRow.id)
    .where(ParticipationRow.round_id == bindparam("round"))
)
_WAITS = select(
    exists().where(
        ParticipationRow.round_id == bindparam("round"),
        ~_HAS_ARRIVED,
        ParticipationRow.is_waited_for,
        ParticipationRow.client_id == ClientRow.id,
        _IS_HERE,
    )
)
_COLLECTING = (
    select(RoundRow, FederationRow.plan, *_HEADS)
    .join(FederationRow, FederationRow.id == RoundRow.federation_id)
    .join(ParticipationRow, ParticipationRow.round_id == RoundRow.id)
    .join(ClientRow, ClientRow.id == ParticipationRow.client_id)
    .where(RoundRow.state == "collecting")
    .group_by(RoundRow.id, FederationRow.id)
    .order_by(RoundRow.id)
)
_ORPHANED = (RoundRow.state == "aggregating") & (RoundRow.lease_expires_at <= bindparam("moment"))
_AWAITING = (
    select(RoundRow.federation_id, RoundRow.number)
    .where(or_(RoundRow.state == "closing", _ORPHANED))
    .order_by(RoundRow.closing_at)
)


class LostRace(Exception):
    """Another transaction moved the round first; look again."""


def latest(session: Session, fid: str) -> RoundRow | None:
    """Which round is the federation in?"""
    return session.scalar(_LATEST, {"fid": fid})


def numbered(session: Session, fid: str, number: int, *, lock: bool = False) -> RoundRow:
    """Which round has this number? With `lock` nobody else changes it until the transaction ends.

    Raises:
        NotFound: none.
    """
    row = session.scalar(_LOCKED if lock else _NUMBERED, {"fid": fid, "number": number})
    if row is None:
        raise NotFound
    return row


def collecting(session: Session) -> list[tuple[RoundRow, RoundFacts]]:
    """Which rounds of all federations collect updates, and what do their next states depend on?

    These move by themselves: at a deadline, or when a client was revoked. Any other step is taken by the
    request that makes it due.
    """
    return [
        (row, _facts(row, RoundsPlan.model_validate(plan["rounds"]), *heads))
        for row, plan, *heads in session.execute(_COLLECTING)
    ]


def awaiting_worker(asked: Session | Connection, moment: datetime) -> list[tuple[str, int]]:
    """Which rounds wait for somebody to aggregate them: (federation, number), the oldest first?"""
    return [(fid, number) for fid, number in run(asked, _AWAITING, {"moment": moment})]


def expire_leases(session: Session) -> None:
    """Forget all workers: for a service that knows it is the only one, when it starts."""
    session.execute(
        update(RoundRow)
        .where(RoundRow.state == "aggregating")
        .values(lease_expires_at=now(session))
        .execution_options(synchronize_session=False)
    )


def published(session: Session, fid: str) -> tuple[int, int]:
    """How many rounds were published, and which was the last (0 = none)?"""
    count, last = run(session, _PUBLISHED, {"fid": fid}).one()
    return count, last or 0


def facts(session: Session, row: RoundRow, plan: FederationPlan) -> RoundFacts:
    """What does the round's next state depend on?"""
    if row.state not in TAKING_PART:
        return _facts(row, plan.rounds, 0, 0, 0, 0)
    return _facts(row, plan.rounds, *run(session, _FACTS, {"round": row.id}).one())


def waits(session: Session, row: RoundRow, moment: datetime) -> bool:
    """Does a round collect, not yet at its deadline, and still wait for a client? Then no step is due.

    One row answers that, where `facts` counts all who take part: every update asks, and others wait for it.
    """
    if row.state != "collecting" or row.deadline is None or moment >= row.deadline:
        return False
    return bool(run(session, _WAITS, {"round": row.id}).scalar())


def state_of(row: RoundRow) -> RoundState:
    """Read a row's state.

    Raises:
        IllegalTransition: it is none that exists.
    """
    return known_state(row.state)


def known_state(stored: str) -> RoundState:
    """Read a stored state.

    Raises:
        IllegalTransition: it is none that exists.
    """
    state = _STATES.get(stored)
    if state is None:
        raise IllegalTransition(f"a round is {stored}")
    return state


def open_round(session: Session, fid: str, number: int, moment: datetime) -> RoundRow:
    """Open a round."""
    row = RoundRow(federation_id=fid, number=number, state="open", version=0, opened_at=moment)
    session.add(row)
    session.flush()
    return row


def transition(session: Session, row: RoundRow, to: RoundState, **changes: Any) -> None:
    """Move a round, if it still is what `row` says: state, version and lease.

    Raises:
        LostRace: it is not.
        IllegalTransition: there is no such transition.
    """
    if (row.state, to) not in TRANSITIONS:
        raise IllegalTransition(f"from {row.state} to {to}")
    same_lease = (
        RoundRow.lease_token.is_(None) if row.lease_token is None else RoundRow.lease_token == row.lease_token
    )
    values = {"state": to, "version": row.version + 1, **changes}
    moved = run(
        session,
        update(RoundRow)
        .where(
            RoundRow.id == row.id, RoundRow.state == row.state, RoundRow.version == row.version, same_lease
        )
        .values(**values),
    )
    _expect_one(moved)
    for name, value in values.items():
        set_committed_value(row, name, value)


def extend_lease(session: Session, round_id: int, token: LeaseToken, until: datetime) -> None:
    """Stay the aggregating worker of a round for longer.

    Raises:
        LostRace: another worker has it, or it has ended.
    """
    kept = session.execute(
        update(RoundRow)
        .where(RoundRow.id == round_id, RoundRow.state == "aggregating", RoundRow.lease_token == token)
        .values(lease_expires_at=until)
        .execution_options(synchronize_session=False)
    )
    _expect_one(kept)


def claimable(session: Session, fid: str, number: int) -> RoundRow | None:
    """Which round of this number may be claimed? None when another worker is at it this moment."""
    return session.scalar(_CLAIMABLE, {"fid": fid, "number": number})


def reject_updates(session: Session, round_id: int, reason: str) -> None:
    """List all updates of a round as rejected."""
    session.execute(
        update(UpdateRow)
        .where(UpdateRow.round_id == round_id)
        .values(reject_reason=reason)
        .execution_options(synchronize_session=False)
    )
    session.execute(
        update(ParticipationRow)
        .where(ParticipationRow.round_id == round_id, ParticipationRow.state == "arrived")
        .values(state="rejected", reject_reason=reason)
        .execution_options(synchronize_session=False)
    )


def _facts(
    row: RoundRow, plan: RoundsPlan, joined: int, expected: int, waiting: int, delivered: int
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
    )


def _expect_one(result: Any) -> None:
    if not isinstance(result, CursorResult) or result.rowcount != 1:
        raise LostRace
