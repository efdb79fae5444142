"""Announce the sessions of a sum: in an event of the federation, the audit log, and the log.

None of them contains a message of a member.
"""

from __future__ import annotations

from sqlalchemy.orm import Session

from coordinator.db.tables.federations import RoundRow
from coordinator.db.tables.secure_sum import SumSessionRow
from coordinator.observability.logs import logger
from coordinator.storage import audit_log, event_log, webhook_outbox
from schemas.messages.secure_sum import SumTerms
from schemas.messages.sum_views import SumEvent

ACTOR = "coordinator"

log = logger(__name__)


def opened(
    session: Session, federation_id: str, row: RoundRow, summed: SumSessionRow, terms: SumTerms
) -> None:
    members = len(terms.members)
    _event(session, federation_id, row, summed, members)
    reason = (
        f"{_name(row, summed)}: {members} members, threshold {terms.threshold}, terms {summed.terms_hash}"
    )
    audit_log.append(session, "sum-session-opened", actor=ACTOR, subject=federation_id, reason=reason)
    log.info("sum-session-opened", federation=federation_id, **_numbers(row, summed), members=members)


def aborted(session: Session, federation_id: str, row: RoundRow, summed: SumSessionRow) -> None:
    """Announce that a session was aborted, for the reason that it has."""
    members = len(summed.terms["members"])
    _event(session, federation_id, row, summed, members)
    reason = f"{_name(row, summed)}: {summed.reason}"
    audit_log.append(session, "sum-session-aborted", actor=ACTOR, subject=federation_id, reason=reason)
    log.warning(
        "sum-session-aborted", federation=federation_id, **_numbers(row, summed), reason=summed.reason
    )


def done(session: Session, federation_id: str, row: RoundRow, summed: SumSessionRow) -> None:
    """Announce that the total of a session is stored."""
    # Members may have dropped out after the terms were written.
    counted = len(summed.closed["masked"]["members"])
    _event(session, federation_id, row, summed, counted)
    members = len(summed.terms["members"])
    reason = f"{_name(row, summed)}: {counted} of {members} members, terms {summed.terms_hash}"
    audit_log.append(session, "sum-session-done", actor=ACTOR, subject=federation_id, reason=reason)
    log.info("sum-session-done", federation=federation_id, **_numbers(row, summed), counted=counted)


def blamed(
    session: Session, federation_id: str, row: RoundRow, summed: SumSessionRow, clients: list[str]
) -> None:
    """Add a message for the webhook if members sent shares that fit nothing; the total is right."""
    if clients:
        data = {"round": row.number, "session": summed.number, "clients": clients}
        webhook_outbox.add(session, federation_id, "sum.member-blamed", data)


def _event(session: Session, federation_id: str, row: RoundRow, summed: SumSessionRow, members: int) -> None:
    event = SumEvent.model_validate(
        {
            "round": row.number,
            "session": summed.number,
            "kind": summed.kind,
            "state": summed.state,
            "members": members,
            "reason": summed.reason,
        }
    )
    event_log.append(session, federation_id, "sum", event.model_dump(mode="json"))


def _name(row: RoundRow, summed: SumSessionRow) -> str:
    return f"round {row.number}, session {summed.number}"


def _numbers(row: RoundRow, summed: SumSessionRow) -> dict[str, int]:
    return {"round": row.number, "session": summed.number}
