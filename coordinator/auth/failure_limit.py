"""Limit failed enrolments and invalid bearer tokens per address and minute, across replicas. A valid
token always passes: the limit bounds the work and the audit entries of failures, not guessing.
"""

from __future__ import annotations

from datetime import timedelta
from ipaddress import IPv6Address, ip_address

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from coordinator.db.engine import Database, database_time
from coordinator.db.tables.identity import FailedEnrolmentRow
from coordinator.db.upsert import delete_before, insert_new
from coordinator.errors import EnrolmentTokenInvalid, EnrolmentTokenMisused, RateLimited
from coordinator.storage import audit_log

_WINDOW = timedelta(minutes=1)
# Prefix of an origin that counts bearer tokens, apart from enrolments.
_BEARER = "bearer "


def count_failure(
    database: Database, address: str, per_minute: int, refused: EnrolmentTokenInvalid, name: str
) -> None:
    """Count a failed enrolment from an address; log the misuse of an existing token to the audit log.

    Concurrent failures may exceed the limit by the number of requests in progress.

    Raises:
        RateLimited: the address reached the limit within the last minute.
    """
    origin = origin_of(address)
    misused = refused if isinstance(refused, EnrolmentTokenMisused) else None
    with database.read() as session:
        wait = _wait(session, origin, per_minute)
        # A misuse is limited by its token, not by its address: failures of neighbours behind one address
        # must not keep it out of the audit log.
        if misused is not None and _wait(session, misused.token_id, per_minute) is not None:
            misused = None
    origins = [] if wait is not None else [origin]
    if misused is not None:
        origins.append(misused.token_id)
    if origins:
        with database.write() as session:
            now = database_time(session)
            delete_before(session, FailedEnrolmentRow.failed_at, now - _WINDOW)
            for counted in origins:
                insert_new(session, FailedEnrolmentRow, {"origin": counted, "failed_at": now})
            if misused is not None:
                audit_log.append(
                    session, "enrolment-refused", actor=misused.token_id, subject=name, reason=misused.reason
                )
    if wait is not None:
        raise RateLimited(wait)


def delete_expired(database: Database) -> int:
    """Delete one batch of failures older than a minute; return the number of deleted rows."""
    with database.write() as session:
        return delete_before(session, FailedEnrolmentRow.failed_at, database_time(session) - _WINDOW)


def count_bearer_failure(database: Database, address: str, per_minute: int) -> None:
    """Count an invalid bearer token from an address.

    Raises:
        RateLimited: the address reached the limit within the last minute.
    """
    origin = f"{_BEARER}{origin_of(address)}"
    with database.read() as session:
        wait = _wait(session, origin, per_minute)
    if wait is not None:
        raise RateLimited(wait)
    with database.write() as session:
        now = database_time(session)
        insert_new(session, FailedEnrolmentRow, {"origin": origin, "failed_at": now})


def _wait(session: Session, origin: str, per_minute: int) -> float | None:
    """Return the seconds until failures of an origin are counted again; None below the limit."""
    now = database_time(session)
    count, oldest = session.execute(
        select(func.count(), func.min(FailedEnrolmentRow.failed_at)).where(
            FailedEnrolmentRow.origin == origin, FailedEnrolmentRow.failed_at > now - _WINDOW
        )
    ).one()
    return (oldest + _WINDOW - now).total_seconds() if count >= per_minute else None


def origin_of(address: str) -> str:
    """Return the origin of a request: its IPv4 address, or the /64 network of its IPv6 address."""
    try:
        parsed = ip_address(address)
    except ValueError:
        return ""
    if isinstance(parsed, IPv6Address) and parsed.ipv4_mapped is not None:
        return str(parsed.ipv4_mapped)
    # One host has a whole /64, so that a limit on single addresses would limit nobody.
    return parsed.exploded[:19] if isinstance(parsed, IPv6Address) else address
