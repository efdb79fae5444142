"""How many enrolments and bearer tokens may fail from one address in a minute; all replicas count together.

Knows no token. Its 256 random bits are not guessed: what is bounded is the work and the audit entries that
failing costs, so a good token passes whatever its neighbours did before. Beyond the bound nothing is written.
Who misuses a real token has its secret: that is counted by token, and not hidden by what others do beside it.
"""

from __future__ import annotations

from datetime import timedelta
from ipaddress import IPv6Address, ip_address

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from coordinator.db.engine import Database, now
from coordinator.db.tables.identity import FailedEnrolmentRow
from coordinator.db.upsert import forget, insert_new
from coordinator.errors import EnrolmentTokenInvalid, EnrolmentTokenMisused, RateLimited
from coordinator.storage import audit_log

_WINDOW = timedelta(minutes=1)
_BEARER = "bearer "
"""Stands before an address whose tokens are counted, apart from its enrolments."""


def note(
    database: Database, address: str, per_minute: int, refused: EnrolmentTokenInvalid, name: str
) -> None:
    """Count a failure from an address, and write down who misused a token that exists, as client `name`.

    A misuse is written down as often within a minute as an address may fail, whatever failed there before.
    Requests that fail at the same moment may pass the bound together, once for each that is under way.

    Raises:
        RateLimited: as many failed from there within the last minute.
    """
    origin = origin_of(address)
    misused = refused if isinstance(refused, EnrolmentTokenMisused) else None
    with database.read() as session:
        wait = _wait(session, origin, per_minute)
        if misused is not None and _wait(session, misused.token_id, per_minute) is not None:
            misused = None
    counted = [
        one for one in (origin if wait is None else None, misused and misused.token_id) if one is not None
    ]
    if counted:
        with database.write() as session:
            moment = now(session)
            forget(session, FailedEnrolmentRow.failed_at, moment - _WINDOW)
            for one in counted:
                insert_new(session, FailedEnrolmentRow, {"origin": one, "failed_at": moment})
            if misused is not None:
                audit_log.append(
                    session, "enrolment-refused", actor=misused.token_id, subject=name, reason=misused.reason
                )
    if wait is not None:
        raise RateLimited(wait)


def forget_old(database: Database) -> int:
    """Forget some failures of more than a minute ago; return their number, 0 when there are no more."""
    with database.write() as session:
        return forget(session, FailedEnrolmentRow.failed_at, now(session) - _WINDOW)


def note_bearer(database: Database, address: str, per_minute: int) -> None:
    """Count a bearer token that is nobody's, from an address.

    Raises:
        RateLimited: as many failed from there within the last minute; a good token passes all the same.
    """
    origin = f"{_BEARER}{origin_of(address)}"
    with database.read() as session:
        wait = _wait(session, origin, per_minute)
    if wait is not None:
        raise RateLimited(wait)
    with database.write() as session:
        moment = now(session)
        insert_new(session, FailedEnrolmentRow, {"origin": origin, "failed_at": moment})


def _wait(session: Session, origin: str, per_minute: int) -> float | None:
    """How many seconds until a failure from there is answered again? None = it is now."""
    moment = now(session)
    count, oldest = session.execute(
        select(func.count(), func.min(FailedEnrolmentRow.failed_at)).where(
            FailedEnrolmentRow.origin == origin, FailedEnrolmentRow.failed_at > moment - _WINDOW
        )
    ).one()
    return (oldest + _WINDOW - moment).total_seconds() if count >= per_minute else None


def origin_of(address: str) -> str:
    """Name where a request comes from; of IPv6 the first 64 bits, which is what one household has."""
    try:
        parsed = ip_address(address)
    except ValueError:
        return ""
    if isinstance(parsed, IPv6Address) and parsed.ipv4_mapped is not None:
        return str(parsed.ipv4_mapped)
    return parsed.exploded[:19] if isinstance(parsed, IPv6Address) else address
