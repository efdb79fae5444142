"""Append to and read the audit log, a hash chain. Append last in a transaction: all entries share one
lock.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Literal

from sqlalchemy import insert, select
from sqlalchemy.orm import Session

from coordinator.db.engine import database_time, run
from coordinator.db.tables.identity import AuditRow, ServerIdentityRow
from coordinator.storage.audit_names import names_of
from schemas.identity.documents import hash_of
from schemas.messages.tokens import AuditEntry, AuditHead, AuditPage

Event = Literal[
    "federation-created",
    "federation-started",
    "federation-paused",
    "federation-finished",
    "federation-removed",
    "enrolment-token-made",
    "enrolment-token-ended",
    "enrolment-refused",
    "client-enrolled",
    "client-key-replaced",
    "client-revoked",
    "pack-deleted",
    "person-token-made",
    "person-token-revoked",
    "person-signed-out",
    "adapter-downloaded",
    "anchors-set",
    "pack-stored",
    "acceptance-set",
    "sum-session-opened",
    "sum-session-aborted",
    "sum-session-done",
]
_LOCKED = select(ServerIdentityRow.id).where(ServerIdentityRow.id == 1).with_for_update()
_LAST = select(AuditRow.number, AuditRow.hash).order_by(AuditRow.number.desc()).limit(1)
_ENTRY = insert(AuditRow)


def append(session: Session, event: Event, *, actor: str, subject: str, reason: str | None = None) -> None:
    """Append that `actor`, the id of a person's token or of a client, acted on `subject`."""
    # One row locks the whole chain: two entries with one predecessor would break it.
    run(session, _LOCKED)
    last = run(session, _LAST).first()
    entry = AuditEntry(
        number=last.number + 1 if last is not None else 1,
        at=database_time(session),
        event=event,
        actor=actor,
        subject=subject,
        reason=reason,
        previous=last.hash if last is not None else None,
    )
    document: dict[str, Any] = entry.model_dump(mode="json")
    run(session, _ENTRY, {"number": entry.number, "document": document, "hash": hash_of(document)})


def page(session: Session, *, after: int, limit: int, head: AuditHead | None) -> AuditPage:
    """Return a page of entries with the names behind their ids."""
    query = select(AuditRow).where(AuditRow.number > after).order_by(AuditRow.number).limit(limit + 1)
    rows = list(session.scalars(query))
    return AuditPage(
        items=[row.document for row in rows[:limit]],
        next=str(rows[limit - 1].number) if len(rows) > limit else None,
        head=head,
        names=names_of(session, {text for row in rows[:limit] for text in _ids(row.document)}),
    )


def _ids(document: Mapping[str, str]) -> tuple[str, str]:
    return document["actor"], document["subject"]


def last(session: Session) -> tuple[int, str, datetime] | None:
    """Return the number and hash of the last entry, and the database time; None without entries."""
    entry = run(session, _LAST).first()
    return (entry.number, entry.hash, database_time(session)) if entry is not None else None
