"""Which signed POSTs were received: none is taken twice, on whichever replica. GET and PUT may be repeated.

A nonce is remembered once its sender is known and may be where it is: what is refused before costs no row.
"""

from __future__ import annotations

from datetime import timedelta

from sqlalchemy import bindparam, func, select

from coordinator.database import Database, now, run
from coordinator.enrolment.signatures import check_timely
from coordinator.enrolment.store import forget, insert_new
from coordinator.errors import Replayed, TooManyPosts
from coordinator.identity_tables import UsedNonceRow
from schemas.identity.signed_requests import SignedRequest

# Longer than any signature may live on clocks that differ as much as they may.
_LIFE = timedelta(minutes=10)
MOST_OF_A_KEY = 600
"""How many POSTs of one key are remembered: what one member can fill the table with."""

_REMEMBERED = select(func.count(), func.min(UsedNonceRow.used_at)).where(
    UsedNonceRow.public_key == bindparam("key"), UsedNonceRow.used_at > bindparam("since")
)


def use(database: Database, key: str, signed: SignedRequest) -> None:
    """Remember a signed POST for ten minutes, in a short write of its own; old ones are forgotten on the way.

    Raises:
        ClockSkew: its time is over by now.
        Replayed: it was received before.
        TooManyPosts: as many of this key's are remembered as may be.
    """
    with database.write() as session:
        # Looked at again: who was held up until its nonce is forgotten must not find it gone.
        moment = now(session)
        check_timely(signed, moment)
        count, oldest = run(session, _REMEMBERED, {"key": key, "since": moment - _LIFE}).one()
        if count >= MOST_OF_A_KEY:
            raise TooManyPosts((oldest + _LIFE - moment).total_seconds())
        forget(session, UsedNonceRow.used_at, moment - _LIFE)
        if not insert_new(
            session, UsedNonceRow, {"public_key": key, "nonce": signed.nonce, "used_at": moment}
        ):
            raise Replayed
