"""Which signed POSTs were received: none is taken twice, on whichever replica. GET and PUT may be repeated.

A nonce is remembered once its sender is known and may be where it is: what is refused before costs no row.
"""

from __future__ import annotations

from datetime import timedelta

from sqlalchemy import bindparam, select

from coordinator.database import Database, now, run
from coordinator.enrolment.signatures import check_timely
from coordinator.enrolment.store import forget, insert_new
from coordinator.errors import Replayed, TooManyPosts
from coordinator.identity_tables import UsedNonceRow
from coordinator.times import clock
from schemas.identity.signed_requests import SignedRequest

# Longer than any signature may live on clocks that differ as much as they may.
_LIFE = timedelta(minutes=10)
MOST_OF_A_KEY = 600
"""How many POSTs of one key are taken in ten minutes; twice as many are in the table before it is tidied."""

# When the oldest came of a key's newest POSTs, of as many as are taken: others may be there, not tidied yet.
_LAST = (
    select(UsedNonceRow.used_at)
    .where(UsedNonceRow.public_key == bindparam("key"))
    .order_by(UsedNonceRow.used_at.desc())
    .offset(MOST_OF_A_KEY - 1)
    .limit(1)
    .scalar_subquery()
)
_ASKED = select(clock(), _LAST)


def use(database: Database, key: str, signed: SignedRequest) -> None:
    """Remember a signed POST for ten minutes, in a short write of its own.

    Raises:
        ClockSkew: its time is over by now.
        Replayed: it was received before.
        TooManyPosts: as many of this key's are remembered as may be.
    """
    with database.write() as session:
        # Looked at again: who was held up until its nonce is forgotten must not find it gone.
        moment, last = run(session, _ASKED, {"key": key}).one()
        check_timely(signed, moment)
        if last is not None and last > moment - _LIFE:
            raise TooManyPosts((last + _LIFE - moment).total_seconds())
        if not insert_new(
            session, UsedNonceRow, {"public_key": key, "nonce": signed.nonce, "used_at": moment}
        ):
            raise Replayed


def forget_old(database: Database) -> int:
    """Forget some POSTs of more than ten minutes ago; give their number, 0 when there are no more."""
    with database.write() as session:
        return forget(session, UsedNonceRow.used_at, now(session) - _LIFE)
