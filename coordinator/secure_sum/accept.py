"""Accept a member's message of a step: check it, store it, and close the phase with the last one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import BinaryIO, TypeVar, cast

from pydantic import BaseModel
from sqlalchemy.orm import Session

from coordinator.auth.authentication import Member, still_member
from coordinator.db.engine import Database, database_time
from coordinator.db.federation_lock import hold_federation
from coordinator.errors import UploadConflict
from coordinator.http.json_body import parse
from coordinator.http.uploads import ReceivedBody
from coordinator.observability.fault_points import may_crash
from coordinator.rounds import participations
from coordinator.secure_sum import intake, sessions, store
from coordinator.secure_sum.addresses import Place, StepAddress, find_place, mismatch, require_in
from coordinator.secure_sum.errors import NOT_ACCEPTABLE
from coordinator.secure_sum.phases import Phase, preceding
from coordinator.secure_sum.session_terms import once
from coordinator.storage import payloads
from coordinator.storage.server_key import ServerKey
from schemas.messages.secure_sum import ConfirmStep, KeysStep, SharesStep, StepReceipt, UnmaskStep
from schemas.secure_sum.count_proofs import are_proved
from schemas.secure_sum.errors import MessageRefused
from schemas.wire.digests import digest_of

Message = TypeVar("Message", bound=BaseModel)

STEP_MESSAGES: dict[Phase, type[BaseModel]] = {
    "keys": KeysStep,
    "shares": SharesStep,
    "confirm": ConfirmStep,
    "unmask": UnmaskStep,
}
"""The messages of the steps that are sent as JSON; a masked vector is octets."""


@dataclass(frozen=True, slots=True)
class StepOutcome:
    """The receipt of a message; `is_new`: this request stored it, `has_moved`: and closed the phase."""

    receipt: StepReceipt
    is_new: bool
    has_moved: bool = False


@dataclass(frozen=True, slots=True)
class _SentMessage:
    digest: str
    size: int
    check: Callable[[Session, Place], None]
    body: bytes | None = None
    payload_id: int | None = None


def accept_json(
    database: Database, member: Member, address: StepAddress, body: bytes, key: ServerKey
) -> StepOutcome:
    """Accept step 0, 1, 3 or 4; the same bytes get the same receipt.

    Raises:
        NotFound, PhaseMismatch, KeyRevoked: as `find_place`, or the client was revoked.
        UploadConflict: this member sent other bytes in this step.
        WeakPublicKey, ShareList, StatementInvalid, ShareInvalid, Invalid: the message is not acceptable.
    """
    message = parse(STEP_MESSAGES[address.phase], body)
    # The digest is of the bytes as sent: the same JSON in another spelling is another message.
    sum_message = _SentMessage(digest_of(body), len(body), partial(_check, message=message), body=body)
    with database.write() as session:
        hold_federation(session, member.federation_id)
        accepted = _accept(session, member, address, sum_message, key)
    may_crash("sum-message-committed")
    return accepted


def masked_bytes(database: Database, member: Member, address: StepAddress) -> int:
    """Return the number of bytes of a masked vector, before its body is read.

    Raises:
        NotFound, PhaseMismatch: as `find_place`, or the vector would come too early or too late.
    """
    with database.read() as session:
        place = find_place(session, member, address)
        if store.message(session, place.session.id, place.position, "masked") is None:
            _require_due(place, "masked")
    return intake.masked_bytes(place.terms)


def accept_masked(
    database: Database, member: Member, address: StepAddress, body: ReceivedBody, key: ServerKey
) -> StepOutcome:
    """Accept step 2, a masked vector; one that comes after its phase has closed is never stored.

    Raises:
        NotFound, PhaseMismatch, KeyRevoked, UploadConflict: as `accept_json`.
        MaskedVector: it has another length, or its counts are not what a member may count.
    """
    committed = _checked_counts(database, member, address, body)

    def check(session: Session, place: Place) -> None:
        intake.check_masked(place.terms, place.position, body.bytes)

    with database.write() as session:
        payload_id = None
        if committed is None:
            # The payload comes before the federation's lock, as in an upload: it may take a while. It is
            # stored only if the message is: a refusal rolls back.
            pieces = payloads.pieces(cast("BinaryIO", body.file))
            payload_id = payloads.store(session, body.digest, body.bytes, pieces)
        hold_federation(session, member.federation_id)
        sum_message = _SentMessage(body.digest, body.bytes, check, body=committed, payload_id=payload_id)
        accepted = _accept(session, member, address, sum_message, key)
    may_crash("sum-message-committed")
    return accepted


def _checked_counts(
    database: Database, member: Member, address: StepAddress, body: ReceivedBody
) -> bytes | None:
    """Check the counts of a message.

    Returns:
        the message, if it is commitments that all members will read; None for other sums, and without masks.

    Raises:
        MaskedVector: the counts are not what a member may count.
    """
    # Before the federation's lock, since proofs of many groups take milliseconds. Terms never change.
    with database.read() as session:
        place = find_place(session, member, address)
    if place.terms.kind != "counts":
        return None
    octets = bytes(body.file.read())
    body.file.seek(0)
    try:
        intake.check_counts(place.terms, place.position, octets)
    except MessageRefused as refused:
        raise NOT_ACCEPTABLE["masked"](refused.reason) from refused
    return octets if are_proved(place.terms) else None


def _accept(
    session: Session, member: Member, address: StepAddress, sum_message: _SentMessage, key: ServerKey
) -> StepOutcome:
    still_member(session, member)
    place, phase = find_place(session, member, address), address.phase
    stored = store.message(session, place.session.id, place.position, phase)
    if stored is not None:
        if stored.digest != sum_message.digest:
            raise UploadConflict(accepted=stored.digest)
        return StepOutcome(_receipt(address, stored), is_new=False)
    _require_due(place, phase)
    try:
        sum_message.check(session, place)
    except MessageRefused as refused:
        raise NOT_ACCEPTABLE[phase](refused.reason) from refused
    now = database_time(session)
    store.add_message(
        session,
        place.session.id,
        place.position,
        phase,
        sum_message.digest,
        now,
        body=sum_message.body,
        payload_id=sum_message.payload_id,
    )
    # From two opened sums of one round one could compute the updates of members that are in only one of
    # them, so that nobody sends shares twice.
    if phase == "unmask":
        store.mark_spent(session, place.session.id, place.position)
    participations.count_upload(session, place.round.id, member.client_id, sum_message.size)
    has_moved = sessions.advance(session, place.round, place.session, now, key)
    may_crash("sum-message-written")
    receipt = _receipt(address, store.StoredMessage(sum_message.digest, now))
    return StepOutcome(receipt, is_new=True, has_moved=has_moved)


def _require_due(place: Place, phase: Phase) -> None:
    if place.session.state != phase:
        raise mismatch(place.session)
    require_in(place, preceding(place.terms, phase))


def _check(session: Session, place: Place, *, message: BaseModel) -> None:
    position, row = place.position, place.session
    match message:
        case KeysStep():
            arrived = messages(session, place, "keys", KeysStep)
            intake.check_keys(place.terms, position, message, arrived.values())
        case SharesStep():
            intake.check_shares(store.closed_set(row, "keys") or (), position, message)
        case ConfirmStep():
            masked = store.closed_set(row, "masked") or ()
            intake.check_confirmation(place.terms, position, message, commitments(session, place), masked)
        case UnmaskStep():
            sharing, masked = store.closed_set(row, "shares") or (), store.closed_set(row, "masked") or ()
            intake.check_unmask(position, message, sharing, masked)


def messages(session: Session, place: Place, phase: Phase, kind: type[Message]) -> dict[int, Message]:
    """Return the messages of a step so far by position, parsed."""
    bodies = store.bodies(session, place.session.id, phase)
    return {position: kind.model_validate_json(body) for position, body in bodies.items()}


def closed_messages(session: Session, place: Place, phase: Phase, kind: type[Message]) -> dict[int, Message]:
    """Return the messages of a closed phase by position; they are parsed once per process."""
    return once(place.session, phase, partial(messages, session, place, phase, kind))


def commitments(session: Session, place: Place) -> dict[int, str]:
    """Return the commitments of the members of U2 by position."""
    shares = closed_messages(session, place, "shares", SharesStep)
    return {position: step.commitment for position, step in shares.items()}


def _receipt(address: StepAddress, stored: store.StoredMessage) -> StepReceipt:
    return StepReceipt(
        round=address.round_number,
        session=address.session,
        step=address.phase,
        digest=stored.digest,
        received_at=stored.received_at,
    )
