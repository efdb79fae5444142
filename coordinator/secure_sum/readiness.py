"""Record the clients that are ready for the sum of a round: they have trained, and send no update."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import bindparam, exists, select, update
from sqlalchemy.orm import Session, aliased

from coordinator.auth.authentication import Member, still_member
from coordinator.db.engine import Database, database_time, run
from coordinator.db.federation_lock import hold_federation
from coordinator.db.tables.federations import ClientRow, ParticipationRow, RoundRow
from coordinator.enrolment.eligibility import check_format
from coordinator.errors import BaseMismatch, NoSecureSum, NotJoined, RoundClosed
from coordinator.federations.store import plan
from coordinator.observability.fault_points import may_crash
from coordinator.rounds import participations, store, transitions
from coordinator.rounds.lifecycle import ACCEPTING
from coordinator.rounds.notifications import Change
from coordinator.secure_sum.errors import OrganisationTaken
from coordinator.secure_sum.joint_digest import joint_digest
from schemas.messages.secure_sum import ReadyReceipt, ReadyRequest

_Peer = aliased(ClientRow)
_IS_CLIENT = (ParticipationRow.round_id == bindparam("round")) & (
    ParticipationRow.client_id == bindparam("client")
)
_PARTICIPATION = select(
    ParticipationRow.state, ParticipationRow.base_digest, ParticipationRow.ready_at
).where(_IS_CLIENT)
_READY = update(ParticipationRow).where(_IS_CLIENT).values(state="ready", ready_at=bindparam("now"))
# The participation of a revoked client is not `ready`, so that its organisation may send another one.
_COLLEAGUE_IS_READY = select(
    exists().where(
        ParticipationRow.round_id == bindparam("round"),
        ParticipationRow.state == "ready",
        ParticipationRow.client_id == _Peer.id,
        _Peer.organisation == ClientRow.organisation,
        ClientRow.id == bindparam("client"),
        _Peer.id != ClientRow.id,
    )
)


@dataclass(frozen=True, slots=True)
class ReadyOutcome:
    """The receipt of a client, and what its request changed.

    Attributes:
        is_new: whether this request made the client ready; False = an earlier one did.
        closed_round: whether the round stopped waiting for clients.
        change: the notification to send; None = there is none, or an event was written already.
    """

    receipt: ReadyReceipt
    is_new: bool = False
    closed_round: bool = False
    change: Change | None = None


def make_ready(database: Database, member: Member, round_number: int, sent: ReadyRequest) -> ReadyOutcome:
    """Record that a client has trained; a repeated request returns the first receipt.

    Raises:
        NotFound: the round does not exist.
        NoSecureSum: the federation sums nothing.
        CapabilityMissing: the client speaks another format of sessions.
        NotJoined: the client has not joined the round.
        RoundClosed: the round accepts no clients any more; the client is marked late.
        BaseMismatch: it trained from other weights than it was served, or than all others were.
        OrganisationTaken: another client of its organisation is ready.
    """
    with database.write() as session:
        last_event = hold_federation(session, member.federation_id)
        still_member(session, member)
        row = store.get_round(session, member.federation_id, round_number, lock=True)
        summed = plan(session, member.federation_id).privacy.secure_sum
        if summed is None:
            raise NoSecureSum
        check_format((sent.format,))
        now = database_time(session)
        outcome = _earlier_outcome(session, row, member, sent)
        if outcome is not None:
            return outcome
        if row.state in ACCEPTING:
            _check(session, row, member, sent, one_per_organisation=summed.one_per_organisation)
            outcome = _make_ready(session, row, member, now, last_event)
            may_crash("ready-written")
        else:
            participations.set_state(session, row.id, member.client_id, "late")
    if outcome is None:
        raise RoundClosed(state=row.state)
    may_crash("ready-committed")
    return outcome


def _earlier_outcome(
    session: Session, row: RoundRow, member: Member, sent: ReadyRequest
) -> ReadyOutcome | None:
    """Return the outcome of a repeated request; None = the client has joined, and was not ready before."""
    parameters = {"round": row.id, "client": member.client_id}
    participation = run(session, _PARTICIPATION, parameters).first()
    if participation is None:
        raise NotJoined if row.state in ACCEPTING else RoundClosed(state=row.state)
    if sent.base != participation.base_digest:
        raise BaseMismatch(base=participation.base_digest)
    if participation.ready_at is not None:
        return ReadyOutcome(_receipt(row, member, participation.ready_at))
    if participation.state != "joined":  # it was late before
        raise RoundClosed(state=row.state)
    return None


def _check(
    session: Session, row: RoundRow, member: Member, sent: ReadyRequest, *, one_per_organisation: bool
) -> None:
    common = joint_digest(session, row.federation_id, row.number)
    # Members would add changes of different models.
    if sent.values != common:
        raise BaseMismatch(
            "Trained from other values than those that all clients of this round are served", values=common
        )
    parameters = {"round": row.id, "client": member.client_id}
    if one_per_organisation and run(session, _COLLEAGUE_IS_READY, parameters).scalar():
        raise OrganisationTaken


def _make_ready(
    session: Session, row: RoundRow, member: Member, now: datetime, last_event: int
) -> ReadyOutcome:
    run(session, _READY, {"round": row.id, "client": member.client_id, "now": now})
    is_announced = transitions.advance(session, row, now)
    return ReadyOutcome(
        _receipt(row, member, now),
        is_new=True,
        closed_round=row.state not in ACCEPTING,
        change=None if is_announced else Change(row.federation_id, row.number, last_event),
    )


def _receipt(row: RoundRow, member: Member, ready_at: datetime) -> ReadyReceipt:
    return ReadyReceipt(round=row.number, client=member.client_id, received_at=ready_at)
