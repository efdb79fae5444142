"""Query the sessions of a round's sum, their members and messages; change their state by compare-and-set.

Every change needs the caller's write transaction with the federation's row locked.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, cast

from sqlalchemy import bindparam, exists, func, insert, select, update
from sqlalchemy.orm import Session
from sqlalchemy.orm.attributes import set_committed_value

from coordinator.db.engine import run
from coordinator.db.tables.federations import ClientRow, RoundRow
from coordinator.db.tables.secure_sum import SumMemberRow, SumMessageRow, SumSessionRow
from coordinator.rounds import sums
from coordinator.rounds.store import LostRace
from coordinator.secure_sum.phases import PHASES, Phase, first_phase
from schemas.messages.secure_sum import SumKind, SumStep, SumTerms

OPENING: Final = "opening"
"""The state of a session whose phases have all closed, until its total is stored."""

LIVE: tuple[SumStep, ...] = (*PHASES, OPENING)
"""States in which a session goes on."""

_ROUND_SESSIONS = select(SumSessionRow).where(SumSessionRow.round_id == bindparam("round"))
_NEWEST = (
    _ROUND_SESSIONS.order_by(SumSessionRow.number.desc()).limit(1).execution_options(populate_existing=True)
)
_POSITION = select(SumMemberRow.position).where(
    SumMemberRow.session_id == bindparam("session"), SumMemberRow.client_id == bindparam("client")
)
_MEMBERS = select(SumMemberRow.position, SumMemberRow.client_id).where(
    SumMemberRow.session_id == bindparam("session")
)
_SPENT = (
    select(SumMemberRow.client_id)
    .join(SumSessionRow, SumSessionRow.id == SumMemberRow.session_id)
    .where(
        SumSessionRow.round_id == bindparam("round"),
        SumSessionRow.kind == bindparam("kind"),
        SumMemberRow.spent,
    )
)
_IS_STEP = (SumMessageRow.session_id == bindparam("session")) & (SumMessageRow.step == bindparam("step"))
_MESSAGE = select(SumMessageRow.digest, SumMessageRow.received_at).where(
    _IS_STEP, SumMessageRow.position == bindparam("position")
)
_ANSWERED = select(SumMessageRow.position).where(_IS_STEP).order_by(SumMessageRow.position)
_COUNT_ANSWERED = select(func.count()).select_from(SumMessageRow).where(_IS_STEP)
_REVOKED_UNHEARD = (
    select(SumMemberRow.position)
    .join(ClientRow, ClientRow.id == SumMemberRow.client_id)
    .where(
        SumMemberRow.session_id == bindparam("session"),
        ClientRow.state != "enrolled",
        ~exists().where(_IS_STEP, SumMessageRow.position == SumMemberRow.position),
    )
)
_BODIES = select(SumMessageRow.position, SumMessageRow.body).where(_IS_STEP).order_by(SumMessageRow.position)
_COUNT_ABORTED = (
    select(func.count())
    .select_from(SumSessionRow)
    .where(SumSessionRow.round_id == bindparam("round"), SumSessionRow.state == "aborted")
)
_INSERT_MESSAGE = insert(SumMessageRow)
_INSERT_MEMBER = insert(SumMemberRow)
_SPEND = (
    update(SumMemberRow)
    .where(SumMemberRow.session_id == bindparam("session"), SumMemberRow.position == bindparam("at"))
    .values(spent=True)
)
_NUMBERED = (SumSessionRow.round_id == RoundRow.id) & (
    SumSessionRow.number
    == select(func.max(SumSessionRow.number))
    .where(SumSessionRow.round_id == RoundRow.id)
    .correlate(RoundRow)
    .scalar_subquery()
)
_SUMMING = (
    select(RoundRow, SumSessionRow)
    .outerjoin(SumSessionRow, _NUMBERED)
    .where(RoundRow.state == "summing")
    .order_by(RoundRow.id)
)


@dataclass(frozen=True, slots=True)
class StoredMessage:
    """The digest of a member's message, and when it was accepted."""

    digest: str
    received_at: datetime


def newest(session: Session, round_id: int) -> SumSessionRow | None:
    """Return the last session of a round, in whatever state."""
    return session.scalar(_NEWEST, {"round": round_id})


def summing(session: Session) -> list[tuple[RoundRow, SumSessionRow | None]]:
    """Return the rounds of all federations that are summed, with their last session."""
    return [(row, newest_session) for row, newest_session in session.execute(_SUMMING)]


def is_live(row: SumSessionRow | None) -> bool:
    return row is not None and row.state in LIVE


def step_of(row: SumSessionRow) -> SumStep:
    """Return the state of a live session.

    Raises:
        LookupError: the session has ended.
    """
    if row.state not in LIVE:
        raise LookupError(f"a session is in state {row.state}, and has no step")
    return row.state


def closed_set(row: SumSessionRow, phase: Phase) -> list[int] | None:
    """Return the positions of the members who answered a phase in time; None while it has not closed."""
    closed = row.closed.get(phase)
    return cast("list[int]", closed["members"]) if closed is not None else None


def position_of(session: Session, session_id: int, client_id: str) -> int | None:
    return run(session, _POSITION, {"session": session_id, "client": client_id}).scalar()


def members(session: Session, session_id: int) -> dict[int, str]:
    """Return the client ids of a session's members by position."""
    rows = run(session, _MEMBERS, {"session": session_id})
    return {position: client_id for position, client_id in rows}


def spent(session: Session, round_id: int, kind: SumKind) -> set[str]:
    """Return the clients that have sent their shares for unmasking in a session of this kind of a round."""
    return set(run(session, _SPENT, {"round": round_id, "kind": kind}).scalars())


def message(session: Session, session_id: int, position: int, step: Phase) -> StoredMessage | None:
    row = run(session, _MESSAGE, {"session": session_id, "position": position, "step": step}).first()
    return StoredMessage(*row) if row is not None else None


def answered(session: Session, session_id: int, step: Phase) -> list[int]:
    """Return the positions of the members whose message of a step was accepted, in order."""
    return list(run(session, _ANSWERED, {"session": session_id, "step": step}).scalars())


def count_answered(session: Session, session_id: int, step: Phase) -> int:
    return run(session, _COUNT_ANSWERED, {"session": session_id, "step": step}).scalar_one()


def count_aborted(session: Session, round_id: int) -> int:
    """Return the number of sessions of a round that failed."""
    return run(session, _COUNT_ABORTED, {"round": round_id}).scalar_one()


def revoked_unheard(session: Session, session_id: int, step: Phase) -> set[int]:
    """Return the positions of members that were revoked before they sent a step."""
    return set(run(session, _REVOKED_UNHEARD, {"session": session_id, "step": step}).scalars())


def bodies(session: Session, session_id: int, step: Phase) -> dict[int, bytes]:
    """Return the bodies of all messages of a step by position; masked vectors have none."""
    rows = run(session, _BODIES, {"session": session_id, "step": step})
    return {position: body for position, body in rows if body is not None}


def add_message(
    session: Session,
    session_id: int,
    position: int,
    step: Phase,
    digest: str,
    now: datetime,
    *,
    body: bytes | None = None,
    payload_id: int | None = None,
) -> None:
    run(
        session,
        _INSERT_MESSAGE,
        {
            "session_id": session_id,
            "position": position,
            "step": step,
            "digest": digest,
            "body": body,
            "payload_id": payload_id,
            "received_at": now,
        },
    )


def mark_spent(session: Session, session_id: int, position: int) -> None:
    """Record that a member has sent its shares: it takes part in no other session of the kind."""
    run(session, _SPEND, {"session": session_id, "at": position})


def open_session(
    session: Session, federation_id: str, round_id: int, terms: SumTerms, terms_hash: str, now: datetime
) -> SumSessionRow:
    """Store a session in the first phase of its terms, with its members."""
    row = SumSessionRow(
        round_id=round_id,
        number=terms.session,
        kind=terms.kind,
        state=first_phase(terms),
        version=0,
        terms=terms.model_dump(mode="json"),
        terms_hash=terms_hash,
        phase_opened_at=now,
        closed={},
        opened_at=now,
    )
    session.add(row)
    session.flush()
    positions = [
        {"session_id": row.id, "position": position, "client_id": member.client, "spent": False}
        for position, member in enumerate(terms.members)
    ]
    run(session, _INSERT_MEMBER, positions)
    sums.count_phase(session, federation_id)
    return row


def close_phase(
    session: Session,
    federation_id: str,
    row: SumSessionRow,
    to: SumStep,
    members: Sequence[int],
    now: datetime,
) -> None:
    """Close the open phase with the members who answered it, and open the next one.

    Raises:
        LostRace: another transaction changed the session.
    """
    at = now.isoformat(timespec="microseconds")
    closed = {**row.closed, row.state: {"members": sorted(members), "at": at}}
    _transition(session, row, {"state": to, "closed": closed, "phase_opened_at": now})
    sums.count_phase(session, federation_id)


def end(
    session: Session, federation_id: str, row: SumSessionRow, state: str, now: datetime, **changes: Any
) -> None:
    """End a session as `done` or `aborted`, and delete its messages.

    Raises:
        LostRace: another transaction changed the session.
    """
    ended = {"state": state, "ended_at": now, "lease_token": None, "lease_expires_at": None}
    _transition(session, row, ended | changes)
    sums.delete_messages(session, row.id)
    sums.count_phase(session, federation_id)


def _transition(session: Session, row: SumSessionRow, changes: Mapping[str, Any]) -> None:
    values = {"version": row.version + 1, **changes}
    lease = SumSessionRow.lease_token
    # Compare-and-set: of two transactions that read the same row, one moves the session.
    same_lease = lease.is_(None) if row.lease_token is None else lease == row.lease_token
    result = run(
        session,
        update(SumSessionRow)
        .where(
            SumSessionRow.id == row.id,
            SumSessionRow.state == row.state,
            SumSessionRow.version == row.version,
            same_lease,
        )
        .values(**values),
    )
    if result.rowcount != 1:
        raise LostRace
    for name, value in values.items():
        set_committed_value(row, name, value)
